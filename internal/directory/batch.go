// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/survive"
)

// Bounds on the clients that wait to be read. If the client of a request would exceed a bound, the
// request is denied, because the client may be blocked.
const (
	// batchMax is the maximum number of clients in one read.
	batchMax = 1024
	// waitingMax is the maximum number of clients that wait.
	waitingMax = 8 * batchMax
	// sourceMax is the maximum number of waiting clients that came from one source of requests,
	// such as an address. The clients of other sources are still read.
	sourceMax = batchMax
	// waitMax is the longest time that a request waits for its batch.
	waitMax = time.Second
	// readAgainMax is the timeout of a repeated read, unless Options.Timeout is longer.
	readAgainMax = 400 * time.Millisecond
)

// batch is a set of clients that are read together.
type batch struct {
	names   map[policy.ClientName]struct{}
	sources map[uint32]int // the number of clients from each source
	done    chan struct{}  // closed when the clients have been read or the read has failed
}

func (b *batch) hasClient(name policy.ClientName) bool {
	_, ok := b.names[name]
	return ok
}

// Waiting returns the number of clients that wait to be read.
func (d *Directory) Waiting() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.queue {
		n += len(b.names)
	}
	return n
}

// Waits reports whether a client waits to be read.
func (d *Directory) Waits(kind, id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.place(policy.ClientName{Kind: kind, ID: id}) > 0
}

// enqueueAll adds the unknown clients of requests to batches, if there is room. enqueueAll returns
// the channels of the batches to wait for.
func (d *Directory) enqueueAll(requests []Unknown) (reads []<-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range requests {
		if done := d.enqueue(requests[i].Source, requests[i].Names); done != nil {
			reads = append(reads, done)
		}
	}
	return reads
}

// await waits until all reads are done, but at most for waitMax. It uses a timer, because a context
// with a timeout would take twice the memory for each new client.
func await(ctx context.Context, reads []<-chan struct{}) {
	timer := time.NewTimer(waitMax)
	defer timer.Stop()
	for _, done := range reads {
		select {
		case <-done:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Directory.enqueue adds the unknown clients of a source to batches, each client once. It returns a
// channel that is closed when all of them have been read. The channel is nil if too many clients
// wait or the directory is closed. The caller holds the lock.
func (d *Directory) enqueue(source uint32, names []policy.ClientName) (done <-chan struct{}) {
	last := -1 // the place of the last batch that contains one of the clients; the batches before it are read first
	done = closed
	for _, name := range names {
		at := d.place(name)
		switch {
		case at >= 0:
		case d.peek(name) != nil:
			continue
		case d.ctx.Err() != nil || !d.hasRoom(source):
			return nil
		default:
			d.addToBatch(source, name)
			at = len(d.queue)
		}
		if at > last {
			last, done = at, d.batch(at).done
		}
	}
	return done
}

// Directory.place returns the place of the batch that contains a client: 0 for the batch that is
// being read, i for the i-th waiting batch, or -1 if no batch contains it.
func (d *Directory) place(name policy.ClientName) int {
	for i := len(d.queue); i > 0; i-- {
		if d.queue[i-1].hasClient(name) {
			return i
		}
	}
	if d.current != nil && d.current.hasClient(name) {
		return 0
	}
	return -1
}

// Directory.batch returns the batch at a place.
func (d *Directory) batch(place int) *batch {
	if place == 0 {
		return d.current
	}
	return d.queue[place-1]
}

// closed is a channel that is closed.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// hasRoom reports whether one more client of a source may wait.
func (d *Directory) hasRoom(source uint32) bool {
	named := 0
	for _, b := range d.queue {
		named += b.sources[source]
	}
	if named >= sourceMax {
		return false
	}
	n := len(d.queue)
	return n*batchMax < waitingMax || len(d.queue[n-1].names) < batchMax
}

// addToBatch appends a client to the last batch, or to a new batch if the last one is full. The
// caller holds the lock.
func (d *Directory) addToBatch(source uint32, name policy.ClientName) {
	n := len(d.queue)
	if n == 0 || len(d.queue[n-1].names) >= batchMax {
		d.queue = append(d.queue, d.newBatch())
		n++
	}
	b := d.queue[n-1]
	b.names[policy.ClientName{Kind: strings.Clone(name.Kind), ID: strings.Clone(name.ID)}] = struct{}{}
	b.sources[source]++
	if !d.reading {
		d.reading = true
		survive.Go(&d.running, d.logger, d.readBatches)
	}
}

// newBatch returns an empty batch. The caller holds the lock.
func (d *Directory) newBatch() *batch {
	b := &batch{done: make(chan struct{})}
	if old := d.spare; old != nil {
		b.names, b.sources, d.spare = old.names, old.sources, nil
	} else {
		b.names, b.sources = make(map[policy.ClientName]struct{}), make(map[uint32]int)
	}
	return b
}

// endBatch ends the batch that was read, and keeps its maps for another batch. The caller holds the
// lock.
func (d *Directory) endBatch() {
	if d.current != nil {
		clear(d.current.names)
		clear(d.current.sources)
		d.spare = d.current
	}
	d.current = nil
}

// readBatches reads batches until the queue is empty. While one batch is read, the next batches are
// filled.
func (d *Directory) readBatches() {
	for {
		d.mu.Lock()
		d.endBatch()
		if len(d.queue) == 0 {
			d.reading = false
			d.mu.Unlock()
			return
		}
		d.current, d.queue = d.queue[0], d.queue[1:]
		b := d.current
		d.mu.Unlock()
		d.readBatch(b)
	}
}

// readBatch reads a batch, and ends the wait for it even if the read panics.
func (d *Directory) readBatch(b *batch) {
	defer close(b.done)
	names := make([]policy.ClientName, 0, len(b.names))
	for name := range b.names {
		names = append(names, name)
	}
	texts, epoch := make([][]byte, len(names)), d.epoch.Load()
	d.figures.Reads.Add(1)
	if err := d.read(names, texts); err != nil {
		d.handleFailure(b, err)
		return
	}
	d.failing.Store(false)
	if d.vanished(names, texts) {
		ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
		defer cancel()
		if whole, ok := d.isWhole(ctx); !ok || !whole {
			d.keep(names, texts)
		}
	}
	d.countLost(names, texts)
	for i, name := range names {
		if name != (policy.ClientName{}) {
			d.store(name, texts[i], epoch)
		}
	}
}

// countLost counts clients without a record if the source has lost its records, because these
// clients may have had one.
func (d *Directory) countLost(names []policy.ClientName, texts [][]byte) {
	d.mu.Lock()
	lost := d.lost
	d.mu.Unlock()
	for i, name := range names {
		if lost && texts[i] == nil && name != (policy.ClientName{}) {
			d.figures.Undirected.Add(1)
		}
	}
}

// Directory.read reads records. If a read times out, it is repeated at most twice, with a timeout
// of at least readAgainMax, because the delay may have been in this process.
func (d *Directory) read(names []policy.ClientName, texts [][]byte) (err error) {
	again := max(d.timeout, readAgainMax)
	for _, most := range [...]time.Duration{d.timeout, again, again} {
		ctx, cancel := context.WithTimeout(d.ctx, most)
		err = d.source.Read(ctx, names, texts)
		end, _ := ctx.Deadline()
		cancel()
		if err == nil || time.Now().Before(end) {
			break
		}
	}
	return err
}

// Directory.vanished reports whether any of the clients had a record and no longer has one. This is
// rare, and may mean that the source has lost its records.
func (d *Directory) vanished(names []policy.ClientName, texts [][]byte) bool {
	for i, name := range names {
		if e := d.peek(name); texts[i] == nil && e != nil && e.present() {
			return true
		}
	}
	return false
}

// Directory.keep leaves in force the remembered records that have vanished from the source. It
// stores each of them again, to be read again after lostFor, and clears the name of its client in
// names.
func (d *Directory) keep(names []policy.ClientName, texts [][]byte) {
	for i, name := range names {
		if e := d.peek(name); texts[i] == nil && e != nil && e.present() {
			again := &entry{name: name, record: e.record, key: e.key, fresh: counter.Micros(d.now().UnixMicro()) + lostFor,
				epoch: d.epoch.Load()}
			again.now.Store(e.now.Load())
			d.cacheOf(name).put(again)
			d.figures.Undirected.Add(1)
			names[i] = policy.ClientName{}
		}
	}
}

// lostFor is how long a record that the source has lost is used before it is read again.
const lostFor = 10 * counter.Second

// handleFailure handles a batch that could not be read. Unless the source was only too busy for
// this batch, the waiting batches are dropped, and for a while no request waits for the source. If
// a client of a failed batch is remembered, the read may have missed a change, so every remembered
// record is read again later.
func (d *Directory) handleFailure(b *batch, err error) {
	d.figures.Failures.Add(1)
	var waiting []*batch
	if !errors.Is(err, ErrBusy) {
		d.failing.Store(true)
		d.pausedUntil.Store(d.now().Add(pauseAfterFailure).UnixMicro())
		d.mu.Lock()
		waiting, d.queue = d.queue, nil
		d.mu.Unlock()
	}
	for _, b := range append(waiting, b) {
		for name := range b.names {
			if e := d.peek(name); e != nil {
				d.missed()
				e.refreshing.Store(false)
			}
		}
	}
	for _, b := range waiting {
		close(b.done)
	}
}

// Directory.paused reports whether the source has failed so recently that requests do not wait for
// it.
func (d *Directory) paused(now counter.Micros) bool { return int64(now) < d.pausedUntil.Load() }

// Directory.store remembers a record that was read. An invalid record has no effect.
func (d *Directory) store(name policy.ClientName, text []byte, epoch uint64) {
	now := counter.Micros(d.now().UnixMicro())
	e := &entry{name: name, fresh: freshUntil(now, name.Kind, text != nil), epoch: epoch}
	if text != nil {
		var err error
		if name.Kind == policy.KindKey {
			e.key, err = parseKey(text)
		} else {
			e.record, err = ParseRecord(text)
		}
		if err != nil {
			d.countUnreadable(name.Kind, err)
		}
	}
	e.now.Store(e.record.at(now))
	if e.key != nil {
		if previous := d.peek(name); previous != nil && previous.key != nil {
			e.key.noted.Store(previous.key.noted.Load())
		}
	}
	d.cacheOf(name).put(e)
}

// countUnreadable counts a record that cannot be read, and logs at most one per second. The log
// contains only the kind of the client, because the identifier may be personal data.
func (d *Directory) countUnreadable(kind string, err error) {
	d.figures.Bad.Add(1)
	second := time.Now().Unix()
	if before := d.badSaid.Load(); before != second && d.badSaid.CompareAndSwap(before, second) {
		d.logger.Warn("a record of the directory has no force: "+err.Error(), "kind", kind)
	}
}
