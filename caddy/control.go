// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
)

// usageMeter counts what clients use, for all configurations of this process.
var usageMeter = meter.New()

// Control names a control plane that receives the data of this node: the events that policies
// report, and the usage of each client. Batches that the control plane has not accepted yet wait in
// a folder. Requests never wait for the control plane.
type Control struct {
	// The address of the API of `penstock control`, such as `https://control:7070`.
	URL string `json:"url,omitempty"`

	// A file that holds a token with the role "node". TokenFile is read before each call.
	TokenFile string `json:"token_file,omitempty"`

	// The folder in which batches wait until the control plane has stored them. No other process
	// may use it. A relative path is relative to the working directory; the Caddyfile makes it
	// relative to the Caddyfile.
	Spool string `json:"spool,omitempty"`

	// The maximum size of the folder in bytes, at least 1048576. Default: 268435456.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
}

// Control.options returns the options with which the feed to the control plane is opened.
func (c *Control) options() feed.Options {
	node, _ := os.Hostname() // a node with the name "" is shown as unnamed
	return feed.Options{Target: controlcall.Target{URL: c.URL, Token: controlcall.TokenFile(c.TokenFile)}, Folder: c.Spool, BytesMax: c.SpoolBytes,
		Node: node, Region: eventLog.Region, Meter: usageMeter, Logger: storeLogger()}
}

// Control.check returns an error if the settings are not valid.
func (c *Control) check(eventsTo string) error {
	if c == nil {
		return nil
	}
	var twice, token error
	if eventsTo != "" {
		twice = errors.New("events_to and control both say where events go: keep one")
	}
	if c.TokenFile == "" {
		token = errors.New("control: token_file is missing: name a file with a token of penstock control token --role node")
	}
	options := c.options()
	if err := options.Check(); err != nil {
		return errors.Join(twice, token, fmt.Errorf("control: %w", err))
	}
	return errors.Join(twice, token)
}

// feeds holds the feeds of all running configurations, keyed by spool.
var feeds = caddy.NewUsagePool()

// pooledFeed is a feed that one or several configurations use.
type pooledFeed struct {
	*feed.Feed
	detach func()
}

// Destruct implements [caddy.Destructor].
func (p *pooledFeed) Destruct() error {
	p.detach()
	return p.Close()
}

// App.report starts sending events and usage to the control plane. The spool is opened when
// a configuration starts, because only one process may have it open.
func (a *App) report() error {
	if a.Control == nil {
		return nil
	}
	options := a.Control.options()
	value, known, err := feeds.LoadOrNew(a.Control.Spool, func() (caddy.Destructor, error) {
		opened, err := feed.Open(options)
		if err != nil {
			return nil, err
		}
		return &pooledFeed{opened, eventLog.Attach(opened)}, nil
	})
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	a.feedKey = a.Control.Spool
	if known {
		return value.(*pooledFeed).Redirect(options.Target)
	}
	return nil
}

// endReport releases the feed, and closes it if no other configuration uses it.
func (a *App) endReport() error {
	if a.feedKey == "" {
		return nil
	}
	_, err := feeds.Delete(a.feedKey)
	a.feedKey = ""
	return err
}

// sumFeedFigures returns the sums of the figures of all feeds.
func sumFeedFigures() (sum feed.Figures) {
	feeds.Range(func(_, value any) bool {
		if p, ok := value.(*pooledFeed); ok {
			sum.Add(p.Figures())
		}
		return true
	})
	return sum
}

func init() { collectors = append(collectors, metrics.FeedOf(sumFeedFigures)...) }

// readControl reads "control" with its URL and its block.
func (b *block) readControl() {
	const word = "control"
	args := b.d.RemainingArgs()
	switch {
	case b.nameLine != nil:
		b.problem(word, "is for the whole Caddy", "write it in a penstock block of the global options")
	case b.control != nil:
		b.problem(word, "is listed twice", "keep one")
	case len(args) != 1:
		b.problem(word, "takes one argument", "write control https://control:7070 { token_file FILE; spool FOLDER }")
	default:
		b.control = &Control{URL: args[0]}
		b.readControlBlock()
		return
	}
	b.skip()
}

func (b *block) readControlBlock() {
	seen := map[string]bool{}
	for nesting := b.d.Nesting(); b.d.NextBlock(nesting); {
		word, args := b.d.Val(), b.d.RemainingArgs()
		place := "control." + word
		switch {
		case seen[word]:
			b.problem(place, "is listed twice", "keep one")
		case len(args) != 1:
			b.problem(place, "takes one argument", "write "+word+" and a value")
		case word == "token_file":
			b.control.TokenFile = resolveInCaddyfile(b.d, args[0])
		case word == "spool":
			b.control.Spool = resolveInCaddyfile(b.d, args[0])
		case word == "spool_bytes":
			n, err := strconv.ParseInt(args[0], 10, 64)
			if b.control.SpoolBytes = n; err != nil || n < feed.SpoolBytesMin {
				b.problem(place, fmt.Sprintf("%q is not a number of %d or more", args[0], feed.SpoolBytesMin), "write spool_bytes 268435456")
			}
		default:
			b.problem(place, "is an unknown field", "the fields are token_file, spool and spool_bytes")
		}
		seen[word] = true
		b.noBlock(word)
	}
}
