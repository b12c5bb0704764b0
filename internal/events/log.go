// SPDX-License-Identifier: Apache-2.0

package events

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// interval is the span of time in which equal decisions become one event.
const interval = time.Second

// notesMax bounds the notes that wait for the end of a second.
const notesMax = 64

// Sink receives events. One goroutine at a time calls a Sink, which may block.
type Sink interface {
	// Write writes events in order, and returns how many it has written.
	Write(events []Event) (written int, err error)
}

// Options configures a log.
type Options struct {
	Node   string                       // the name of this process in events
	Now    func() time.Time             // nil means time.Now
	After  func(time.Duration, func())  // calls a function later; nil means time.AfterFunc
	Failed func(err error, lost uint64) // called if a sink did not write events; lost is the number of their decisions; may be nil
}

// Log collects decisions and writes events about them. Create a Log with [New]. A nil *Log ignores
// all decisions. A Log is safe for concurrent use.
type Log struct {
	options Options
	timer   *time.Timer
	wanted  atomic.Bool // whether a policy in force reports events
	region  atomic.Pointer[string]
	table   atomic.Pointer[table]
	armed   atomic.Bool // whether a call of tick is due
	recent  recentDenials
	tail    tail

	beyond, unwritten atomic.Uint64 // decisions dropped so far, by reason
	written           atomic.Uint64 // events

	mu    sync.Mutex // guards sinks and notes
	sinks []Sink     // the sinks; events are written to the last one
	notes []Event

	writing sync.Mutex // a lock held while events are written, never by a request
	told    [2]uint64  // dropped decisions that events have reported, by reason
	shown   uint64     // decisions beyond EventsMax that the tail has reported
}

// New returns a log without a sink. Such a log only remembers the latest denials.
func New(o Options) *Log {
	l := &Log{options: o}
	if l.options.Now == nil {
		l.options.Now = time.Now
	}
	if l.options.After == nil {
		l.timer = time.AfterFunc(time.Hour, l.tick)
		l.timer.Stop()
		l.options.After = func(d time.Duration, _ func()) { l.timer.Reset(d) }
	}
	return l
}

// Attach makes the log write to a sink until detach is called. The log writes to the sink that was
// attached last. When detach is called, the log writes the collected events to the sink, and waits
// at most two seconds for that. After that, the log writes to the previous sink.
func (l *Log) Attach(s Sink) (detach func()) {
	l.mu.Lock()
	l.sinks = append(l.sinks, s)
	l.mu.Unlock()
	return sync.OnceFunc(func() {
		l.flushWithin(2 * time.Second)
		l.mu.Lock()
		defer l.mu.Unlock()
		if i := slices.Index(l.sinks, s); i >= 0 {
			l.sinks = slices.Delete(l.sinks, i, i+1)
		}
	})
}

// Count adds n decisions to the event of equal decisions. If there is no such event, it returns
// false, and the caller calls [Log.Add].
func (l *Log) Count(k *Key, n uint64) bool {
	t := l.table.Load()
	if t == nil {
		return false
	}
	counted, full := t.count(k, n)
	if full {
		l.beyond.Add(n)
	}
	return counted || full
}

// Add adds n decisions to the event of equal decisions. If there is no such event yet, it makes a
// new one.
func (l *Log) Add(k *Key, d *Details, n uint64) {
	t := l.table.Load()
	if t == nil {
		t = newTable()
		if !l.table.CompareAndSwap(nil, t) {
			t = l.table.Load()
		}
	}
	if !t.addEvent(k, d, n, l.options.Now()) {
		l.beyond.Add(n)
	}
	l.arm()
}

// Drop counts decisions that the caller has dropped, so that the log can report their number.
func (l *Log) Drop(n uint64) {
	if n > 0 {
		l.beyond.Add(n)
		l.arm()
	}
}

// SetRegion sets the region of this process, which further events name.
func (l *Log) SetRegion(name string) { l.region.Store(&name) }

// Region returns the region of this process; "" if it has none.
func (l *Log) Region() string {
	if name := l.region.Load(); name != nil {
		return *name
	}
	return ""
}

// Want records that a policy in force reports events. Before that, the log ignores notes.
func (l *Log) Want() {
	if !l.wanted.Load() {
		l.wanted.Store(true)
	}
}

// Note adds an event that is not a decision, such as the beginning of an outage.
func (l *Log) Note(e Event) {
	if l == nil || !l.wanted.Load() {
		return
	}
	e.Time, e.Node, e.Region = l.options.Now(), l.options.Node, l.Region()
	l.mu.Lock()
	if len(l.notes) < notesMax {
		l.notes = append(l.notes, e)
	}
	l.mu.Unlock()
	l.arm()
}

// Log.arm schedules a call of tick, unless one is due already.
func (l *Log) arm() {
	if !l.armed.Load() && !l.armed.Swap(true) {
		l.options.After(interval, l.tick)
	}
}

// Log.tick is called at the end of a second, and writes the events of that second.
func (l *Log) tick() {
	l.flush()
	l.armed.Store(false)
	if l.pending() {
		l.arm()
	}
}

// Log.pending reports whether there is anything to write.
func (l *Log) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.table.Load()
	return t != nil && t.used.Load() > 0 || len(l.notes) > 0 || len(l.sinks) > 0 && l.hasUnreported()
}

// hasUnreported reports whether there are dropped decisions that no event has reported.
func (l *Log) hasUnreported() bool {
	if !l.writing.TryLock() {
		return true
	}
	defer l.writing.Unlock()
	return l.told != [2]uint64{l.beyond.Load(), l.unwritten.Load()}
}

// flushWithin calls flush and waits until it has returned, but no longer than the time named most.
// If that time ends first, flush continues in the background.
func (l *Log) flushWithin(most time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.flush()
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Log.flush writes the events of the second that has ended.
func (l *Log) flush() {
	l.writing.Lock()
	defer l.writing.Unlock()
	var all []Event
	if t := l.table.Load(); t != nil {
		all = t.take(l.options.Node)
	}
	for i := range all {
		all[i].Region = l.Region()
	}
	l.recent.addEvents(all)
	l.mu.Lock()
	all = append(all, l.notes...)
	l.notes = nil
	var sink Sink
	if n := len(l.sinks); n > 0 {
		sink = l.sinks[n-1]
	}
	l.mu.Unlock()
	Sort(all)
	l.remember(all)
	if sink == nil {
		return
	}
	if l.write(sink, all) {
		l.writeDropped(sink)
	}
}

// Log.remember adds events to the tail, and an event with the number of decisions beyond EventsMax.
func (l *Log) remember(all []Event) {
	if beyond := l.beyond.Load(); beyond != l.shown {
		all = append(slices.Clip(all), Event{Time: l.options.Now(), Kind: KindDropped, Reason: reasonRate, Node: l.options.Node, Region: l.Region(),
			Count: beyond - l.shown})
		l.shown = beyond
	}
	l.tail.addEvents(all)
}

// byTime compares events by time, then by node and client.
func byTime(a, b Event) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Client, b.Client))
}

// Log.write writes events, and counts the decisions of the events that the sink does not write.
func (l *Log) write(sink Sink, all []Event) bool {
	if len(all) == 0 {
		return true
	}
	n, err := sink.Write(all)
	l.written.Add(uint64(n))
	if err == nil && n == len(all) {
		return true
	}
	var lost uint64
	for _, e := range all[n:] {
		lost += e.Count
	}
	l.unwritten.Add(lost)
	if l.options.Failed != nil {
		l.options.Failed(err, lost)
	}
	return false
}

// The reasons of dropped decisions.
const (
	reasonRate = "rate"
	reasonSink = "sink"
)

// writeDropped writes an event with the number of decisions dropped since the last call.
func (l *Log) writeDropped(sink Sink) {
	for i, dropped := range [...]uint64{l.beyond.Load(), l.unwritten.Load()} {
		if dropped == l.told[i] {
			continue
		}
		e := Event{Time: l.options.Now(), Kind: KindDropped, Reason: [...]string{reasonRate, reasonSink}[i], Node: l.options.Node,
			Region: l.Region(), Count: dropped - l.told[i]}
		if n, err := sink.Write([]Event{e}); n != 1 || err != nil {
			return
		}
		l.told[i] = dropped
	}
}

// Figures are counts since the log was made.
type Figures struct {
	Written   uint64 // events
	Beyond    uint64 // decisions beyond EventsMax
	Unwritten uint64 // decisions of events that a sink did not write
}

// Figures returns the counts of a log, which are 0 for a nil *Log.
func (l *Log) Figures() Figures {
	if l == nil {
		return Figures{}
	}
	return Figures{Written: l.written.Load(), Beyond: l.beyond.Load(), Unwritten: l.unwritten.Load()}
}

// Recent returns the latest denials of a client, the newest first. The client is written as
// KIND:ID. Denials of the last second may be missing.
func (l *Log) Recent(client string) []Event {
	if l == nil {
		return nil
	}
	return l.recent.denialsOf(client)
}
