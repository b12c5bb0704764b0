// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/survive"
)

const (
	// UsageEvery is how often usage is written to the spool.
	UsageEvery = 5 * time.Second
	// SpoolBytesDefault and SpoolBytesMin bound the spool.
	SpoolBytesDefault = 256 << 20
	SpoolBytesMin     = 1 << 20
	// eventsPercent is the share of the spool that events may fill; the rest is for usage.
	eventsPercent = 90
	// closeTime is how long a feed that closes goes on sending.
	closeTime = 2 * time.Second
)

// Options configures a feed. Target and Folder are required.
type Options struct {
	controlcall.Target
	Folder   string // of the spool
	BytesMax int64  // of the spool; 0 means SpoolBytesDefault
	Node     string // the name of this process in reports of usage
	// Region returns the region of this process for reports of usage; "" if it has none. It may be
	// nil.
	Region func() string
	Meter  *meter.Meter // may be nil
	Logger *slog.Logger
	Client *http.Client // nil means a new client

	pauseMost time.Duration // 0 means the constant pauseMost
}

// Feed sends events and usage to a control plane. It is a sink of events. Create one with [Open].
type Feed struct {
	options Options
	target  atomic.Pointer[controlcall.Target]
	spool   *spool
	id      string
	wake    chan struct{}
	unmeter func()
	end     context.CancelFunc
	ending  atomic.Bool
	running sync.WaitGroup

	mu      sync.Mutex // guards the fields below: batches are written one after the other
	last    int64      // the number of the last batch
	encoder encoder

	sent, rejected, failed atomic.Uint64
	trouble                atomic.Pointer[string]
}

// Open opens the spool, turns the meter on, and begins to send.
func Open(o Options) (*Feed, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.BytesMax == 0 {
		o.BytesMax = SpoolBytesDefault
	}
	if o.pauseMost == 0 {
		o.pauseMost = pauseMost
	}
	if o.Client == nil {
		o.Client = &http.Client{Timeout: sendTime}
	}
	o.Node = fit(o.Node, nodeBytesMost, true)
	f := &Feed{options: o, wake: make(chan struct{}, 1)}
	f.target.Store(&o.Target)
	if err := f.begin(); err != nil {
		return nil, err
	}
	return f, nil
}

// Check returns what is wrong with the options. It opens nothing.
func (o *Options) Check() error {
	switch {
	case o.Folder == "":
		return errors.New("the spool of what is sent to the control plane is missing: name a folder on this machine's disk")
	case o.BytesMax != 0 && o.BytesMax < SpoolBytesMin:
		return fmt.Errorf("a spool of %d bytes is too small: write %d or more", o.BytesMax, SpoolBytesMin)
	}
	return o.Target.Check()
}

// Feed.begin opens the spool, turns the meter on, and begins to send.
func (f *Feed) begin() (err error) {
	var random [FeedBytes/2 - 6]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	// The feeds of later processes sort after those of earlier ones, so that batches are sent in
	// the order of their times.
	f.id = fmt.Sprintf("%012x", time.Now().UnixMilli()&(1<<48-1)) + hex.EncodeToString(random[:])
	if f.spool, err = openSpool(f.options.Folder, f.options.BytesMax); err != nil {
		return err
	}
	f.unmeter = func() {}
	if f.options.Meter != nil {
		f.unmeter = f.options.Meter.Use()
	}
	ctx, end := context.WithCancel(context.Background())
	f.end = end
	survive.Go(&f.running, f.options.Logger, func() { f.send(ctx) })
	survive.Go(&f.running, f.options.Logger, func() { f.measure(ctx) })
	return nil
}

// Redirect makes the feed send to another control plane, or with another token.
func (f *Feed) Redirect(to controlcall.Target) error {
	if err := to.Check(); err != nil {
		return err
	}
	f.target.Store(&to)
	return nil
}

// Write implements [events.Sink].
func (f *Feed) Write(all []events.Event) (written int, err error) {
	for written < len(all) {
		n := 0
		err := f.batch(eventsPercent, func(e *encoder) {
			for ; written+n < len(all) && !e.full(); n++ {
				e.event(&all[written+n])
			}
		})
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// Feed.batch writes a batch to the spool, unless the spool is full.
func (f *Feed) batch(percent int64, fill func(*encoder)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.encoder.begin()
	fill(&f.encoder)
	text, err := f.encoder.end()
	if err != nil {
		return err
	}
	if !f.spool.hasRoom(int64(len(text)), percent) {
		return fmt.Errorf("%w: %q has %d bytes; is the control plane away?", errFull, f.options.Folder, f.options.BytesMax)
	}
	f.last++
	if err := f.spool.put(batch{feed: f.id, number: f.last}, text); err != nil {
		return fmt.Errorf("the spool: %w", err)
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
	return nil
}

// Feed.measure writes usage to the spool at each multiple of UsageEvery, and a last time at the
// end.
func (f *Feed) measure(ctx context.Context) {
	if f.options.Meter == nil {
		return
	}
	for {
		begun := time.Now().Truncate(UsageEvery)
		timer := time.NewTimer(time.Until(begun.Add(UsageEvery)))
		select {
		case <-ctx.Done():
			timer.Stop()
			f.measuredAll(begun)
			return
		case <-timer.C:
			f.measuredAll(begun)
		}
	}
}

// Feed.region returns the region of this process, in the form of a name in a line.
func (f *Feed) region() string {
	if f.options.Region == nil {
		return ""
	}
	return Escape(f.options.Region())
}

// measuredAll writes all that the meter has counted since the previous call.
func (f *Feed) measuredAll(at time.Time) {
	f.measured(at)
	f.measuredLatencies(at)
	f.measuredKeys()
}

// measured writes the usage since the previous call. Usage that does not fit into the spool goes
// back to the meter.
func (f *Feed) measured(at time.Time) {
	rows := f.options.Meter.Take()
	for len(rows) > 0 {
		n := 0
		err := f.batch(100, func(e *encoder) {
			for ; n < len(rows) && !e.full(); n++ {
				e.usage(&rows[n], at.UTC(), f.options.Node, f.region())
			}
		})
		if err != nil {
			f.options.Meter.Return(rows)
			f.logTrouble(fmt.Errorf("usage stays in memory: %w", err))
			return
		}
		rows = rows[n:]
	}
}

// latencyLines is the greatest number of histograms in a batch, because their lines are longer than
// other lines.
const latencyLines = 1000

// measuredLatencies writes the histograms since the previous call. The histograms may fill as much
// of the spool as events may. Those that do not fit go back to the meter.
func (f *Feed) measuredLatencies(at time.Time) {
	rows := f.options.Meter.TakeLatencies()
	for len(rows) > 0 {
		some := rows[:min(len(rows), latencyLines)]
		err := f.batch(eventsPercent, func(e *encoder) {
			for i := range some {
				e.latency(&some[i], at.UTC(), f.options.Node, f.region())
			}
		})
		if err != nil {
			f.options.Meter.ReturnLatencies(rows)
			f.logTrouble(fmt.Errorf("latencies stay in memory: %w", err))
			return
		}
		rows = rows[len(some):]
	}
}

// measuredKeys writes the API keys that were used since the previous call. The keys may fill as
// much of the spool as events may. Those that do not fit go back to the meter.
func (f *Feed) measuredKeys() {
	uses := f.options.Meter.TakeKeys()
	for i := range uses { // equal times share a line
		uses[i].Micros -= uses[i].Micros % UsageEvery.Microseconds()
	}
	slices.SortFunc(uses, func(a, b meter.KeyUse) int {
		return cmp.Or(cmp.Compare(a.Micros, b.Micros), bytes.Compare(a.Hash[:], b.Hash[:]))
	})
	for len(uses) > 0 {
		n := 0
		err := f.batch(eventsPercent, func(e *encoder) {
			for n < len(uses) && !e.full() {
				n += e.usedKeys(uses[n:], f.options.Node, f.region())
			}
		})
		if err != nil {
			f.options.Meter.ReturnKeys(uses)
			f.logTrouble(fmt.Errorf("the times of API keys stay in memory: %w", err))
			return
		}
		uses = uses[n:]
	}
}

// Close writes the last usage to the spool, sends what it can within two seconds, and leaves the
// rest to the next process. After Close, the feed no longer uses the meter.
func (f *Feed) Close() error {
	if f.ending.Swap(true) {
		return nil
	}
	f.unmeter()
	f.end()
	f.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	for ctx.Err() == nil {
		if more, err := f.sendFirst(ctx); !more || err != nil {
			break
		}
	}
	return f.spool.Close()
}

// Figures are counts since the feed was opened, and the state of the spool.
type Figures struct {
	Sent, Rejected, Failed uint64 // batches; Failed counts attempts
	Waiting                int    // batches
	SpoolBytes             int64
}

// Figures returns the figures of a feed, which are 0 for a nil *Feed.
func (f *Feed) Figures() (figures Figures) {
	if f == nil {
		return figures
	}
	figures = Figures{Sent: f.sent.Load(), Rejected: f.rejected.Load(), Failed: f.failed.Load()}
	figures.Waiting, figures.SpoolBytes = f.spool.state()
	return figures
}

// Add adds the figures of another feed.
func (f *Figures) Add(o Figures) {
	f.Sent, f.Rejected, f.Failed = f.Sent+o.Sent, f.Rejected+o.Rejected, f.Failed+o.Failed
	f.Waiting, f.SpoolBytes = f.Waiting+o.Waiting, f.SpoolBytes+o.SpoolBytes
}
