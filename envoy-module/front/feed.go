// SPDX-License-Identifier: Apache-2.0

package front

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
)

// Control names a control plane that is told what happened on this node: the events that policies
// report, and what each client used. Batches that the control plane cannot take yet wait in a
// folder. No request waits for the control plane.
type Control struct {
	// The address of the API of `penstock control`, such as `https://control:7070`.
	URL string `json:"url,omitempty"`

	// A file that holds a token of the role node. TokenFile is read before each call.
	TokenFile string `json:"token_file,omitempty"`

	// The folder in which batches wait until the control plane has them. No other process may use
	// it.
	Spool string `json:"spool,omitempty"`

	// The most bytes that the folder takes, at least 1048576. Default: 268435456.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
}

// The method options returns the options of a feed.
func (c *Control) options(m *meter.Meter, region func() string, logger *slog.Logger) feed.Options {
	node, _ := os.Hostname() // "" is shown as an unnamed node
	return feed.Options{Target: controlcall.Target{URL: c.URL, Token: controlcall.TokenFile(c.TokenFile)}, Folder: c.Spool, BytesMax: c.SpoolBytes,
		Node: node, Region: region, Meter: m, Logger: logger}
}

// spoolAgain is the time after which a spool that another process uses is tried again.
const spoolAgain = time.Second

// sharedFeed is a feed that one or several configurations use. During a hot restart of Envoy, the
// previous process has the spool until it ends. Usage is gathered meanwhile, and events go where
// they would go without the feed.
type sharedFeed struct {
	r *reports

	mu      sync.Mutex
	options feed.Options
	opened  *feed.Feed // nil while another process has the spool
	detach  func()     // of events
	unmeter func()     // nil after the feed was opened
	again   *time.Timer
	failed  bool // an attempt of retry has failed, and the log says so
	closed  bool
}

func (r *reports) openFeed(c *Control) (end func() error, err error) {
	options := c.options(r.meter, r.log.Region, r.logger)
	if known := r.feeds[c.Spool]; known != nil {
		if err := known.value.redirect(options.Target); err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
		if now, wanted := bytesOf(&known.value.options), bytesOf(&options); now != wanted {
			r.logger.Warn("spool_bytes of control has no effect, since the spool is open with another: restart Envoy, or write another spool",
				"spool", c.Spool, "spool_bytes", wanted, "in_force", now)
		}
	}
	_, err = r.feeds.use(c.Spool, func() (*sharedFeed, error) {
		f := &sharedFeed{r: r, options: options}
		return f, f.open()
	})
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	return func() error { return r.feeds.end(&r.mu, c.Spool) }, nil
}

// bytesOf returns the maximum size of a spool in bytes.
func bytesOf(o *feed.Options) int64 { return cmp.Or(o.BytesMax, feed.SpoolBytesDefault) }

// The method redirect makes the feed send to another target.
func (f *sharedFeed) redirect(to controlcall.Target) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != nil {
		return f.opened.Redirect(to)
	}
	f.options.Target = to
	return nil
}

// The method open opens the feed, or gathers usage and tries again if another process has the
// spool.
func (f *sharedFeed) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.openLocked()
}

func (f *sharedFeed) openLocked() error {
	if f.closed || f.opened != nil {
		return nil
	}
	opened, err := feed.Open(f.options)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		if f.unmeter == nil {
			f.unmeter = f.options.Meter.Use()
			f.r.logger.Warn("another process has the spool of control, and the module tries again each second", "spool", f.options.Folder)
		}
		f.tryLater()
		return nil
	}
	if err != nil {
		return err
	}
	f.opened, f.detach = opened, f.r.log.Attach(opened)
	f.unuse()
	return nil
}

// The method retry opens the feed after another process had the spool. The configuration has been
// accepted, so it tries again after any error, and logs the first.
func (f *sharedFeed) retry() {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.openLocked()
	if err == nil {
		return
	}
	if !f.failed {
		f.failed = true
		f.r.logger.Error("the control plane is told nothing yet, and the module tries again each second", "error", err)
	}
	f.tryLater()
}

// tryLater schedules another attempt to open the spool. The mutex must be held.
func (f *sharedFeed) tryLater() {
	if f.again != nil {
		f.again.Stop()
	}
	f.again = time.AfterFunc(spoolAgain, f.retry)
}

// The method unuse ends the gathering of usage without a feed. The mutex must be held.
func (f *sharedFeed) unuse() {
	if f.unmeter != nil {
		f.unmeter()
		f.unmeter = nil
	}
}

// The method get returns the feed, or nil while another process has the spool.
func (f *sharedFeed) get() *feed.Feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened
}

// The method close ends the sending. Batches that the control plane does not have yet stay in the
// folder.
func (f *sharedFeed) close() error {
	f.mu.Lock()
	f.closed = true
	if f.again != nil {
		f.again.Stop()
	}
	f.unuse()
	opened, detach := f.opened, f.detach
	f.mu.Unlock()
	if opened == nil {
		return nil
	}
	detach()
	return opened.Close()
}
