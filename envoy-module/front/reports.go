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

// reports receives the reports of all filters of a process. Events go to the sink of the latest
// configuration that names one, or else to the standard output. Usage goes to a control plane. The
// type is safe for concurrent use.
type reports struct {
	log    *events.Log
	meter  *meter.Meter
	logger *slog.Logger

	mu    sync.Mutex
	sinks shares[*sharedSink] // by EventsTo
	feeds shares[*sharedFeed] // by spool
}

// sharedSink is a sink of events that one or several configurations use.
type sharedSink struct {
	detach func()
	closer io.Closer
}

func newReports(logger *slog.Logger) *reports {
	node, _ := os.Hostname() // if it is "", events name no node
	r := &reports{meter: meter.New(), logger: logger, sinks: shares[*sharedSink]{}, feeds: shares[*sharedFeed]{}}
	r.log = events.New(events.Options{Node: node, Failed: func(err error, lost uint64) {
		logger.Warn("events could not be written, and are only counted", "decisions", lost, "error", err)
	}})
	if sink, _, err := events.Open(events.ToStdout); err == nil {
		r.log.Attach(sink)
	}
	return r
}

// reports.open begins to write events to the place that a configuration names. The caller must call
// the function named end when the configuration ends.
func (r *reports) open(s *Settings) (end func() error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.SetRegion(s.Region)
	switch {
	case s.Control != nil:
		return r.openFeed(s.Control)
	case s.EventsTo != "":
		return r.openSink(s.EventsTo)
	}
	return func() error { return nil }, nil
}

// discardSink drops all events. It is used for "events_to: none".
type discardSink struct{}

// Write implements [events.Sink].
func (discardSink) Write(all []events.Event) (int, error) { return len(all), nil }

func (r *reports) openSink(to string) (end func() error, err error) {
	_, err = r.sinks.use(to, func() (*sharedSink, error) {
		sink, closer, err := events.Open(to)
		if err != nil {
			return nil, fmt.Errorf("events_to: %w", err)
		}
		if sink == nil {
			sink = discardSink{}
		}
		return &sharedSink{detach: r.log.Attach(sink), closer: closer}, nil
	})
	if err != nil {
		return nil, err
	}
	return func() error { return r.sinks.end(&r.mu, to) }, nil
}

// sharedSink.close writes the remaining events and closes the sink.
func (s *sharedSink) close() error {
	s.detach()
	return s.closer.Close()
}

// reports.figures returns the sums of the figures of all feeds.
func (r *reports) figures() (sum feed.Figures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.feeds {
		sum.Add(one.value.get().Figures())
	}
	return sum
}

// checkReports returns the errors of the settings that concern reports.
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
	options := s.Control.options(nil, nil, nil)
	if err := options.Check(); err != nil {
		problems = append(problems, fmt.Errorf("control: %w", err))
	}
	return errors.Join(problems...)
}
