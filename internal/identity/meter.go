// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"hash/maphash"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// What may be spent on tokens that no key has signed. Each of these costs up to a millisecond and a half, and anybody can send as many
// as the network takes.
//
// What is spent is paid off as time goes by, of an address a hundredth of the time, of all addresses together an eighth of the time of
// each processor. What is not paid off yet is stated as the time that this will take.
const (
	// An address that owes addressOwed is not listened to: that is after 10 ms at once, or 10 ms a second.
	addressPart = 100
	addressOwed = core.Second
	// When all together owe totalOwed, only those are listened to that are clean: that have owed nothing for cleanAfter. That is
	// after 25 ms at once for each processor, or 125 ms a second.
	totalPart  = 8
	totalOwed  = 200 * core.Millisecond
	cleanAfter = 10 * core.Second
	// owedMax is how much more is remembered than what stops somebody.
	owedMax = 2

	// freeOfCharge is what a token may cost without being counted: as much as the rest of a request.
	freeOfCharge core.Micros = 20
	// costMax is the most that one token is charged, some times what the dearest costs. One that took longer was interrupted by
	// what else the machine does.
	costMax = 5 * core.Millisecond
)

const (
	meterRows    = 2
	meterBuckets = 1 << 13
)

// meter bounds what is spent on verifying tokens: by address, in all, and at once. Tokens that verify are free.
//
// Addresses share buckets, by a hash with a secret, in two rows: an address is charged in both, and judged by the better of them. Beside
// 1,000 attackers one address in 70 shares both of its buckets with some of them. A meter takes 128 KiB, whoever asks. It is safe for
// concurrent use, and takes no lock.
type meter struct {
	gates      [2]gate // for clean addresses, and for the others, which do not hold them up
	seed       maphash.Seed
	processors core.Micros
	total      bucket
	rows       [meterRows][meterBuckets]bucket
}

// newMeter returns a meter for so many processors. Clean addresses have half of them at most, and so have the others. Of two processors
// clean addresses have both: with one slot a busy machine that takes the processor from one token takes it from all.
func newMeter(processors int) *meter {
	m := &meter{seed: maphash.MakeSeed(), processors: core.Micros(processors)}
	m.gates[0].slots = make(chan struct{}, max(2, processors/2))
	m.gates[1].slots = make(chan struct{}, max(1, processors/2))
	return m
}

// processMeter is the meter of all verifiers of a process: they share its processors.
var processMeter = sync.OnceValue(func() *meter { return newMeter(runtime.GOMAXPROCS(0)) })

// bucket is the instant at which all is paid off.
type bucket struct{ atomic.Int64 }

// owed returns how long it takes until all is paid off; below 0, for how long it has been. An instant that is further ahead than it
// can be is from before the clock went back.
func (b *bucket) owed(now, most core.Micros) core.Micros {
	if ahead := core.Micros(b.Load()) - now; ahead <= most {
		return ahead
	}
	return 0
}

// pay makes the bucket owe so much more, most in all.
func (b *bucket) pay(now, amount, most core.Micros) {
	for {
		before := b.Load()
		begin := core.Micros(before)
		if begin < now || begin-now > most {
			begin = now
		}
		if b.CompareAndSwap(before, int64(min(begin+amount, now+most))) {
			return
		}
	}
}

// buckets returns those of an address. Of an IPv6 address the first half counts.
func (m *meter) buckets(addr netip.Addr) (all [meterRows]*bucket) {
	text := addr.As16()
	if addr.Is6() {
		clear(text[8:])
	}
	sum := maphash.Bytes(m.seed, text[:])
	for row := range all {
		all[row], sum = &m.rows[row][sum%meterBuckets], sum/meterBuckets
	}
	return all
}

// admits reports whether a token from an address may be verified, and whether the address is clean: it has owed nothing for a while.
// Without an address only what all may spend together bounds it.
func (m *meter) admits(addr netip.Addr, now core.Micros) (ok, clean bool) {
	calm := m.total.owed(now, owedMax*totalOwed) < totalOwed
	if !addr.IsValid() {
		return calm, false
	}
	least := core.Micros(owedMax * addressOwed)
	for _, b := range m.buckets(addr) {
		least = min(least, b.owed(now, owedMax*addressOwed))
	}
	clean = least <= -cleanAfter
	return least < addressOwed && (calm || clean), clean
}

// charge counts what a token has cost that no key has signed.
func (m *meter) charge(addr netip.Addr, now, cost core.Micros) {
	cost = min(cost, costMax) - freeOfCharge
	if cost <= 0 {
		return
	}
	m.total.pay(now, cost*totalPart/m.processors, owedMax*totalOwed)
	if !addr.IsValid() {
		return
	}
	for _, b := range m.buckets(addr) {
		b.pay(now, cost*addressPart, owedMax*addressOwed)
	}
}

// Bounds of the wait for a processor.
const (
	// waitMax is how long a token waits where nothing else waits for it: clients that all come with new tokens at once, after a
	// restart, are to be known.
	waitMax = core.Second
	// waitersMax is how many wait.
	waitersMax = 4096
	// keptForClean is what others leave to clean addresses of the time that they have together.
	keptForClean = 4 * core.Millisecond
)

// gate lets in as many at once as it has slots, in the order in which they come.
type gate struct {
	slots   chan struct{}
	waiting atomic.Int64
}

// enter waits for a slot, so long at most. It reports false if there was none; otherwise the caller leaves.
func (g *gate) enter(most core.Micros) bool {
	select {
	case g.slots <- struct{}{}:
		return true
	default:
	}
	defer g.waiting.Add(-1)
	if g.waiting.Add(1) > waitersMax || most <= 0 {
		return false
	}
	timer := time.NewTimer(time.Duration(most) * time.Microsecond)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

func (g *gate) leave() { <-g.slots }

// inquiry is the verification of one token. The zero inquiry is of nobody in particular, and is not metered.
type inquiry struct {
	asker   *core.Asker
	meter   *meter
	elapsed func() core.Micros // on a clock that is never set
	gate    *gate
	began   core.Micros
	waited  core.Micros
}

// begin reports whether there is time for the token at all.
func (q *inquiry) begin(now core.Micros) bool {
	if q.asker == nil {
		return true
	}
	if !q.admitted(now) || q.left() <= 0 {
		return q.refuse()
	}
	q.began = q.elapsed()
	return true
}

// admitted reports whether the client may have a token verified, and says where it waits for that.
func (q *inquiry) admitted(now core.Micros) bool {
	ok, clean := q.meter.admits(q.asker.Addr, now)
	if q.gate = &q.meter.gates[1]; clean {
		q.gate = &q.meter.gates[0]
	}
	return ok
}

// left returns how long the token may take.
func (q *inquiry) left() core.Micros {
	switch {
	case q.asker.Left == nil:
		return waitMax
	case q.gate == &q.meter.gates[0]:
		return *q.asker.Left
	default:
		return *q.asker.Left - keptForClean
	}
}

// enter waits for a processor. It reports false if there was none; otherwise the caller leaves.
func (q *inquiry) enter(now core.Micros) bool {
	if q.asker == nil {
		return true
	}
	start, gate := q.elapsed(), q.gate
	entered := gate.enter(q.left())
	q.waited = q.elapsed() - start
	switch {
	case !entered:
	case q.waited > 0 && !q.admitted(now+q.waited): // those before it have spent everything
		gate.leave()
	default:
		q.gate = gate
		return true
	}
	return q.refuse()
}

// leave gives the processor back.
func (q *inquiry) leave() {
	if q.asker != nil {
		q.gate.leave()
	}
}

func (q *inquiry) refuse() bool {
	q.asker.Unchecked = true
	return false
}

// end counts what the token has cost, and takes that and the wait off what the caller has left. signed says that one of the keys has
// signed it.
func (q *inquiry) end(now core.Micros, signed bool) {
	if q.asker == nil {
		return
	}
	cost := q.elapsed() - q.began - q.waited
	if q.asker.Left != nil {
		*q.asker.Left -= q.waited + min(cost, costMax)
	}
	if !signed && !q.asker.Unchecked {
		q.meter.charge(q.asker.Addr, now, cost)
	}
}
