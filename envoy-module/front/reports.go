// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
)

// reports is where all filters of a process report decisions: events go to the sink of the latest
// configuration that names one, and usage to a control plane. Without such a configuration, events
// go to the standard output. It is safe for concurrent use.
type reports struct {
	log    *events.Log
	meter  *meter.Meter
	logger *slog.Logger

	mu    sync.Mutex
	sinks map[string]*sharedSink // by EventsTo
	feeds map[string]*sharedFeed // by spool
}

// sharedSink is a sink of events that one or several configurations use.
type sharedSink struct {
	users  int
	detach func()
	closer io.Closer // may be nil
}

func newReports(logger *slog.Logger) *reports {
	node, _ := os.Hostname() // if it is "", events have no node
	r := &reports{meter: meter.New(), logger: logger, sinks: map[string]*sharedSink{}, feeds: map[string]*sharedFeed{}}
	r.log = events.New(events.Options{Node: node, Failed: func(err error, lost uint64) {
		logger.Warn("events could not be written, and are only counted", "decisions", lost, "error", err)
	}})
	if sink, _, err := events.Open(events.ToStdout); err == nil {
		r.log.Attach(sink)
	}
	return r
}

// open begins to report as a configuration says, until end is called.
func (r *reports) open(s *Settings) (end func() error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.Control != nil:
		return r.openFeed(s.Control)
	case s.EventsTo != "":
		return r.openSink(s.EventsTo)
	}
	return func() error { return nil }, nil
}

// nowhere is the sink of events_to: none.
type nowhere struct{}

// Write implements [events.Sink].
func (nowhere) Write(all []events.Event) (int, error) { return len(all), nil }

func (r *reports) openSink(to string) (end func() error, err error) {
	shared := r.sinks[to]
	if shared == nil {
		sink, closer, err := events.Open(to)
		if err != nil {
			return nil, fmt.Errorf("events_to: %w", err)
		}
		if sink == nil {
			sink = nowhere{}
		}
		shared = &sharedSink{detach: r.log.Attach(sink), closer: closer}
		r.sinks[to] = shared
	}
	shared.users++
	return func() error { return r.closeSink(to, shared) }, nil
}

// closeSink ends one use of a sink. The last one writes the events that were gathered.
func (r *reports) closeSink(to string, shared *sharedSink) error {
	r.mu.Lock()
	shared.users--
	last := shared.users == 0
	if last {
		delete(r.sinks, to)
	}
	r.mu.Unlock()
	if !last {
		return nil
	}
	shared.detach()
	if shared.closer == nil {
		return nil
	}
	return shared.closer.Close()
}

// figures returns the sums of the figures of all feeds.
func (r *reports) figures() (sum feed.Figures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.feeds {
		sum.Add(one.get().Figures())
	}
	return sum
}

// checkReports returns what is wrong with the settings of reports.
func (s *Settings) checkReports() error {
	if s.Control == nil {
		return nil
	}
	var problems []error
	if s.EventsTo != "" {
		problems = append(problems, errors.New("events_to and control both say where events go: keep one"))
	}
	if s.Control.TokenFile == "" {
		problems = append(problems, errors.New("control: token_file is missing: name a file with a token of penstock control token --role node"))
	}
	options := s.Control.options(nil, nil)
	if err := options.Check(); err != nil {
		problems = append(problems, fmt.Errorf("control: %w", err))
	}
	return errors.Join(problems...)
}
