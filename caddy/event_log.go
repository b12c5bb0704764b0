// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"io"
	"os"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/events"
)

// eventLog receives the decisions that policies report, for all configurations of this process.
var eventLog = newEventLog()

func newEventLog() *events.Log {
	node, _ := os.Hostname() // if it is "", events do not name a node
	return events.New(events.Options{Node: node, Failed: func(err error, lost uint64) {
		storeLogger().Warn("events could not be written, and are only counted", "decisions", lost, "error", err)
	}})
}

func init() { collectors = append(collectors, metrics.EventsOf(eventLog)...) }

// eventsOut is the sink of a configuration's events.
type eventsOut struct {
	sink   events.Sink
	closer io.Closer
	detach func() // nil until the app starts
}

// openEvents opens the sink that events_to names. By default, events go to Caddy's log, or to the
// control plane if there is one.
func (a *App) openEvents() (err error) {
	if a.Control != nil {
		return nil
	}
	a.reports = eventsOut{sink: &caddyLog{a.logger.Named("events")}}
	if a.EventsTo != "" {
		a.reports.sink, a.reports.closer, err = events.Open(a.EventsTo)
	}
	return err
}

// readEventsTo reads "events_to" with its one argument. A relative path is relative to the
// Caddyfile.
func (b *block) readEventsTo() {
	const word = "events_to"
	args := b.d.RemainingArgs()
	switch {
	case b.nameLine != nil:
		b.problem(word, "is for the whole Caddy", "write it in a penstock block of the global options")
	case b.eventsTo != "":
		b.problem(word, "is listed twice", "keep one")
	case len(args) != 1:
		b.problem(word, "takes one argument", "write events_to, then "+events.Forms)
	case strings.Contains(args[0], "/") && !strings.HasPrefix(args[0], "syslog:"):
		b.eventsTo = resolveInCaddyfile(b.d, args[0])
	default:
		b.eventsTo = args[0]
	}
}

// attachEvents makes the process write its events to this configuration's sink.
func (a *App) attachEvents() {
	if a.reports.sink != nil {
		a.reports.detach = eventLog.Attach(a.reports.sink)
	}
}

// detachEvents writes the queued events, and leaves later events to the next configuration.
func (a *App) detachEvents() {
	if a.reports.detach != nil {
		a.reports.detach()
	}
}

// closeEvents closes the sink that openEvents has opened.
func (a *App) closeEvents() error {
	a.detachEvents()
	closer := a.reports.closer
	if a.reports.closer = nil; closer == nil {
		return nil
	}
	return closer.Close()
}

// caddyLog writes events to Caddy's log. Caddy does not report whether a log entry could be
// written.
type caddyLog struct{ logger *zap.Logger }

// Write implements [events.Sink].
func (c *caddyLog) Write(all []events.Event) (written int, err error) {
	defer func() {
		if reason := recover(); reason != nil { // a log writer of another module may panic
			err = errors.New("the log writer has panicked")
		}
	}()
	for i := range all {
		e := &all[i]
		if entry := c.logger.Check(zapcore.InfoLevel, e.Kind); entry != nil {
			entry.Write(zap.Inline(event{e}))
		}
		written++
	}
	return written, nil
}

// event writes an event as the fields of a log entry. The fields have the same names as in the
// result of [events.Event.AppendJSON].
type event struct{ *events.Event }

// MarshalLogObject implements [zapcore.ObjectMarshaler].
func (e event) MarshalLogObject(into zapcore.ObjectEncoder) error {
	into.AddString("time", e.Time.UTC().Format(events.TimeForm))
	into.AddString("kind", e.Kind)
	e.Texts(func(name, value string) {
		if value != "" {
			into.AddString(name, value)
		}
	})
	if e.Status != 0 {
		into.AddInt("status", e.Status)
	}
	if e.RetryAfterMS != 0 {
		into.AddInt64("retry_after_ms", e.RetryAfterMS)
	}
	if e.LatencyUS != 0 {
		into.AddInt64("latency_us", e.LatencyUS)
	}
	if e.Seconds != 0 {
		into.AddFloat64("seconds", e.Seconds)
	}
	if e.Share != 0 {
		into.AddFloat64("share", e.Share)
	}
	into.AddUint64("count", e.Count)
	return nil
}
