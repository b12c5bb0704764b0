// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/survive"
)

// Defaults and bounds of a directory.
const (
	// ClientsMaxDefault is the default of Options.ClientsMax.
	ClientsMaxDefault = 1 << 16
	// TimeoutDefault is the default of Options.Timeout.
	TimeoutDefault = 50 * time.Millisecond
	// freshFor, keyFreshFor and absentFor are how long the record of a client, the record of a key,
	// and the absence of a record are used before they are read again in the background. Each of
	// these times varies by a tenth.
	freshFor    = 300 * counter.Second
	keyFreshFor = 600 * counter.Second // of a key
	absentFor   = 60 * counter.Second
	// KeyUsedEvery is the shortest time between two recorded uses of an API key.
	KeyUsedEvery = 10 * time.Minute
	// lookEvery is the interval at which the history is read, to find changes that no message has
	// announced. It varies by a tenth, so it is at most 33 s. A change must take effect within 36
	// s, so 3 s remain for its publication and for the reading.
	lookEvery = 30 * time.Second
	// pauseAfterFailure is how long requests do not wait for the source after it has failed to
	// answer.
	pauseAfterFailure = time.Second
)

// Options configures a directory. Source is required.
type Options struct {
	Source Source
	// ClientsMax is the greatest number of clients that are remembered, with or without a record.
	// The same bound applies to API keys, separately. If ClientsMax is 0, the default applies.
	ClientsMax int
	// Timeout bounds one read of the source. If Timeout is 0, the default applies.
	Timeout time.Duration
	// Now returns the time. Nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil means none
	// KeyUsed is called when a request has a valid API key, about once in KeyUsedEvery for each
	// key. If KeyUsed returns false, it is called for the next request with the key, too. Nil means
	// none.
	KeyUsed func(hash [32]byte, micros int64) (noted bool)
}

// Directory implements [policy.Directory] over a source. Create it with [Open] and close it with
// Close. A Directory is safe for concurrent use.
type Directory struct {
	source   Source
	timeout  time.Duration
	now      func() time.Time
	logger   *slog.Logger
	keyUsed  func(hash [32]byte, micros int64) (noted bool)
	cache    *cache // of clients
	keys     *cache // the cache of API keys, which is separate so that made-up keys evict no client
	networks atomic.Pointer[networks]
	position string        // the position in the history; only the goroutine of look uses it
	epoch    atomic.Uint64 // the epoch, raised when changes may have been missed; entries of earlier epochs are read again
	figures  Figures
	badSaid  atomic.Int64 // the second in which a bad record was last logged
	// the instant until which requests do not wait for the source, in Unix microseconds.
	pausedUntil atomic.Int64
	failing     atomic.Bool // whether the source did not answer the last read

	mu         sync.Mutex
	queue      []*batch // the clients to read next, at most batchMax in each batch
	current    *batch   // the clients being read; nil for none
	spare      *batch   // a batch whose maps are reused; nil if there is none
	reading    bool     // whether a goroutine reads batches
	generation string   // the generation of the records, as last read
	lost       bool     // whether the source has lost its records

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Figures are the counters of a directory, for metrics.
type Figures struct {
	Misses, Undirected, Overloads, Bad, Reads, Failures atomic.Uint64
}

var (
	_ policy.Directory    = (*Directory)(nil)
	_ policy.KeyDirectory = (*Directory)(nil)
)

// Open returns a directory that is ready to use: it has read the networks, unless the source did
// not answer within a second. Open follows the source in the background.
func Open(o Options) (*Directory, error) {
	if o.Source == nil {
		return nil, errors.New("a directory needs a source")
	}
	d := &Directory{source: o.Source, timeout: o.Timeout, now: o.Now, logger: o.Logger, keyUsed: o.KeyUsed}
	if d.timeout <= 0 {
		d.timeout = TimeoutDefault
	}
	if d.now == nil {
		d.now = time.Now
	}
	if d.logger == nil {
		d.logger = slog.New(slog.DiscardHandler)
	}
	if o.ClientsMax <= 0 {
		o.ClientsMax = ClientsMaxDefault
	}
	d.cache, d.keys = newCache(o.ClientsMax), newCache(o.ClientsMax)
	d.networks.Store(new(networks))
	d.ctx, d.cancel = context.WithCancel(context.Background())
	// without this, a blocked network would be served until the method named look reads the
	// networks
	d.readNetworks(d.ctx)
	survive.Go(&d.running, d.logger, d.look)
	survive.Go(&d.running, d.logger, func() { d.source.Follow(d.ctx, d.rereadClient, d.missed) })
	return d, nil
}

// Close stops following the source. The remembered records stay readable.
func (d *Directory) Close() error {
	d.mu.Lock() // no read begins after this point
	d.cancel()
	d.mu.Unlock()
	d.running.Wait()
	return nil
}

// Hits returns how many lookups found a remembered client or key.
func (d *Directory) Hits() uint64 { return d.cache.hits() + d.keys.hits() }

// Figures returns the counts, which keep changing.
func (d *Directory) Figures() *Figures { return &d.figures }

// Len returns the number of clients that are remembered.
func (d *Directory) Len() int { return d.cache.len() }

// KeysLen returns the number of API keys that are remembered, with or without a record.
func (d *Directory) KeysLen() int { return d.keys.len() }

// Source returns the source.
func (d *Directory) Source() Source { return d.source }

// Find implements [policy.Directory].
func (d *Directory) Find(kind, id string, now counter.Micros) (record *policy.ClientRecord, ok bool) {
	e := d.cache.find(policy.ClientName{Kind: kind, ID: id})
	if e == nil {
		d.figures.Misses.Add(1)
		return nil, false
	}
	if d.isStale(e, now) {
		d.readAgain(e, now)
	}
	return e.at(now), true
}

// FindKey implements [policy.KeyDirectory].
func (d *Directory) FindKey(hash [32]byte, now counter.Micros) (who *policy.Identity, state policy.CredentialState, ok bool) {
	var text [2 * len(hash)]byte
	hex.Encode(text[:], hash[:])
	e := d.keys.find(policy.ClientName{Kind: policy.KindKey, ID: unsafe.String(&text[0], len(text))})
	if e == nil {
		d.figures.Misses.Add(1)
		return nil, policy.CredentialUnknown, false
	}
	if d.isStale(e, now) {
		d.readAgain(e, now)
	}
	if who, state = e.key.at(now); who != nil && d.keyUsed != nil && e.key.isUnnoted(now) && d.keyUsed(hash, int64(now)) {
		e.key.noted.Store(int64(now))
	}
	return who, state, true
}

// isStale reports whether an entry is no longer fresh.
func (d *Directory) isStale(e *entry, now counter.Micros) bool {
	return now >= e.fresh || e.epoch != d.epoch.Load()
}

// readAgain reads a stale entry again, in the background.
func (d *Directory) readAgain(e *entry, now counter.Micros) {
	if !d.paused(now) && e.refreshing.CompareAndSwap(false, true) {
		d.refresh(e)
	}
}

// cacheOf returns the cache that a name belongs to.
func (d *Directory) cacheOf(name policy.ClientName) *cache {
	if name.Kind == policy.KindKey {
		return d.keys
	}
	return d.cache
}

// Directory.peek returns the entry of a name, or nil.
func (d *Directory) peek(name policy.ClientName) *entry { return d.cacheOf(name).peek(name) }

// FindAddr implements [policy.Directory].
func (d *Directory) FindAddr(addr netip.Addr, now counter.Micros) *policy.ClientRecord {
	return d.networks.Load().find(addr, now)
}

// Fetch reads the records of clients that Find does not know, in one call together with those of
// other callers. The argument source is a number for the origin of the request, such as its
// address. Fetch waits until the clients have been read, the source of the records has failed, or
// the context is done. The caller then uses Find again. If a client is still unknown then and the
// source has failed, the client is treated as one without a record. If the source works, the
// client's record was evicted before it could be used, because too many other clients were read.
//
// The result ok is false if the source works and too many clients wait to be read. The caller must
// then deny the request, because its client may be blocked, and a blocked client could cause the
// overload with many made-up names.
func (d *Directory) Fetch(ctx context.Context, source uint32, names []policy.ClientName) (ok bool) {
	requests := [1]Unknown{{Source: source, Names: names}}
	d.FetchAll(ctx, requests[:])
	return !requests[0].Overload
}

// Unknown are the clients of one request that Find does not know, for [Directory.FetchAll].
type Unknown struct {
	Source uint32
	Names  []policy.ClientName
	// Overload is set if the caller must deny the request.
	Overload bool
}

// FetchAll does what Fetch does, for several requests together. FetchAll waits once for all of
// them.
func (d *Directory) FetchAll(ctx context.Context, requests []Unknown) {
	if !d.pausedNow() {
		await(ctx, d.enqueueAll(requests))
	}
	for i := range requests {
		r := &requests[i]
		switch r.Overload = false; {
		case d.knows(r.Names):
		case !d.Works():
			d.figures.Undirected.Add(1)
		default:
			d.figures.Overloads.Add(1)
			r.Overload = true
		}
	}
}

// Works reports whether the source has answered its last read. If it has, a request whose client is
// still unknown after a read is denied.
func (d *Directory) Works() bool {
	return !d.pausedNow() && !d.failing.Load() && d.ctx.Err() == nil
}

// Timeout returns how long one read of the source may take.
func (d *Directory) Timeout() time.Duration { return d.timeout }

func (d *Directory) pausedNow() bool { return d.paused(counter.Micros(d.now().UnixMicro())) }

// Prepare makes a plan use the directory, and reads what the plan needs to know about the client of
// the counters: the client's API key first, and then the client. A nil directory changes nothing.
func (d *Directory) Prepare(ctx context.Context, p *core.Plan, counters iter.Seq[[]counter.Check]) {
	if d == nil {
		return
	}
	p.Reset()
	p.UseDirectory(d)
	for range roundsMax {
		for range counters {
			break // the first page is enough to identify the client
		}
		names := p.Unresolved()
		if len(names) == 0 {
			return
		}
		d.Fetch(ctx, p.Source(), names)
	}
}

// Resolve reads the clients and keys that a plan needs, and adds the request to the plan again. If
// the clients or keys remain unknown although the source works, the plan denies the request.
// Resolve is called when [core.Plan.Unresolved] is not empty.
func (d *Directory) Resolve(ctx context.Context, p *core.Plan, add func()) {
	again := func(required bool) {
		p.Retry()
		if required {
			p.RequireRecords()
		}
		add()
	}
	for range roundsMax {
		keys := slices.ContainsFunc(p.Unresolved(), func(name policy.ClientName) bool { return name.Kind == policy.KindKey })
		ok := d.Fetch(ctx, p.Source(), p.Unresolved())
		switch again(!ok); {
		case !ok, len(p.Unresolved()) == 0, !d.Works():
			return
		case !keys:
			again(true) // the records were evicted, because too many others were read
			return
		}
	}
	again(true)
}

// Learn starts reading the clients and keys that Find does not know, and does not wait for them.
func (d *Directory) Learn(source uint32, names []policy.ClientName) {
	if !d.knows(names) && !d.pausedNow() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.enqueue(source, names)
	}
}

// roundsMax is the number of times that a request waits for reads: once for its key, and once for
// the client of that key.
const roundsMax = 2

// Directory.knows reports whether all clients are remembered.
func (d *Directory) knows(names []policy.ClientName) bool {
	for _, name := range names {
		if d.peek(name) == nil {
			return false
		}
	}
	return true
}

// Directory.refresh reads an entry again in the background.
func (d *Directory) refresh(e *entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.place(e.name) > 0:
	case d.ctx.Err() == nil && d.hasRoom(0):
		d.addToBatch(0, e.name)
	default:
		e.refreshing.Store(false)
	}
}

// rereadClient reads the record of a client again after a change. A client that the directory does
// not remember is not read, unless a read of it is under way. That read may have begun before the
// change.
func (d *Directory) rereadClient(name policy.ClientName) {
	if name.Kind == KindNetwork {
		d.readNetworks(d.ctx)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.peek(name) != nil || d.place(name) == 0
	if known && d.place(name) <= 0 && d.ctx.Err() == nil {
		d.addToBatch(0, name) // the bounds do not apply here, because operators make few changes, and the client is remembered
	}
}

// Directory.missed marks every remembered record to be read again at its next use, because changes
// may have been missed.
func (d *Directory) missed() { d.epoch.Add(1) }

// Directory.look reads the networks and the history at intervals.
func (d *Directory) look() {
	for {
		ok := d.readNetworks(d.ctx) && d.lookAtHistory()
		pause := lookEvery - lookEvery/10 + rand.N(lookEvery/5)
		if !ok {
			pause = pauseAfterFailure
		}
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// lookAtHistory reads again every record that has changed since the last look.
func (d *Directory) lookAtHistory() bool {
	ctx, cancel := context.WithTimeout(d.ctx, max(d.timeout, time.Second))
	defer cancel()
	if _, ok := d.isWhole(ctx); !ok {
		return false
	}
	changes, err := d.source.Changes(ctx, d.position)
	if err != nil {
		return false
	}
	if !changes.Whole {
		d.missed()
	}
	d.position = changes.Position
	networks := false
	for _, name := range changes.Names {
		if name.Kind == KindNetwork {
			networks = true // the records are read together
			continue
		}
		d.rereadClient(name)
	}
	return !networks || d.readNetworks(d.ctx)
}

// isWhole reports whether the source still has its records. A source does not have them if it has
// lost them, like a Redis that was emptied, or if it never had any. The result ok is false if the
// source did not answer. If the records were replaced by others, all remembered ones are read
// again.
func (d *Directory) isWhole(ctx context.Context) (whole, ok bool) {
	generation, err := d.source.Generation(ctx)
	if err != nil {
		return false, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case generation == d.generation:
		if generation == "" { // remembered records were created and lost since the last look
			return false, true
		}
	case generation == "":
		if !d.lost {
			d.lost = true
			d.logger.Warn("the directory has lost its records: those that this process remembers stay in force; restore the others")
		}
		return false, true
	default:
		// d.generation may be "", because a control plane may have written all records since the
		// last look
		d.missed()
		d.generation = generation
	}
	d.lost = false
	return true, true
}

// freshUntil returns the instant until which a record that was just read is fresh.
func freshUntil(now counter.Micros, kind string, present bool) counter.Micros {
	span := absentFor
	switch {
	case present && kind == policy.KindKey:
		span = keyFreshFor
	case present:
		span = freshFor
	}
	return now + span - span/10 + rand.N(span/5)
}
