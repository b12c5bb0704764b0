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

// Control names a control plane. This node reports to it the events that policies ask for, and the
// usage of each client. Batches that the control plane has not accepted yet wait in a folder. No
// request waits for the control plane.
type Control struct {
	// The address of the API of `penstock control`, such as `https://control:7070`.
	URL string `json:"url,omitempty"`

	// A file that holds a token of the role "node". The file is read before each call.
	TokenFile string `json:"token_file,omitempty"`

	// The folder in which batches wait until the control plane has them. No other process may use
	// it.
	Spool string `json:"spool,omitempty"`

	// The maximum size of the folder in bytes, at least 1048576. Default: 268435456.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
}

// Control.options returns the options of a feed.
func (c *Control) options(m *meter.Meter, region func() string, logger *slog.Logger) feed.Options {
	node, _ := os.Hostname() // if it is "", the node has no name
	return feed.Options{Target: controlcall.Target{URL: c.URL, Token: controlcall.TokenFile(c.TokenFile)}, Folder: c.Spool, BytesMax: c.SpoolBytes,
		Node: node, Region: region, Meter: m, Logger: logger}
}

// spoolAgain is the pause between two attempts to open a spool that another process uses.
const spoolAgain = time.Second

// sharedFeed is a feed that one or several configurations use. During a hot restart of Envoy, the
// previous process has the spool until that process ends. Until then, usage is gathered, and events
// go where they would go without the feed.
type sharedFeed struct {
	r *reports

	mu      sync.Mutex
	options feed.Options
	opened  *feed.Feed // nil while another process has the spool
	detach  func()     // detaches the feed from the log of events
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

// sharedFeed.redirect makes the feed send to another control plane.
func (f *sharedFeed) redirect(to controlcall.Target) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened != nil {
		return f.opened.Redirect(to)
	}
	f.options.Target = to
	return nil
}

// sharedFeed.open opens the feed. If another process has the spool, the method begins to gather
// usage, and schedules another attempt.
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

// sharedFeed.retry tries again to open the feed. The configuration has already been accepted, so
// the method schedules another attempt after any error. It logs only the first error.
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

// sharedFeed.unuse ends the gathering of usage that open began. The mutex must be held.
func (f *sharedFeed) unuse() {
	if f.unmeter != nil {
		f.unmeter()
		f.unmeter = nil
	}
}

// sharedFeed.get returns the feed, or nil while another process has the spool.
func (f *sharedFeed) get() *feed.Feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened
}

// sharedFeed.close closes the feed. Batches that the control plane does not have yet stay in the
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
