// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"hash/maphash"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Bounds of the processor time for tokens that no key has signed. Each such token costs up to 1.5
// ms, and anyone can send them as fast as the network allows.
//
// Time spent is a debt that is paid off as time passes. The debt of an address is paid off at a
// hundredth of real time, and the debt of all addresses together at an eighth of real time for each
// processor. A debt is expressed as the time until it is paid off.
const (
	// The tokens of an address with a debt of addressOwed are not verified. An address reaches that
	// debt with 10 ms of processor time at once, or with 10 ms a second.
	addressPart = 100
	addressOwed = counter.Second
	// The same applies to all addresses of an IPv6 network of networkBits together, with ten times
	// as much processor time. Otherwise a subscriber could have one token verified for each of up
	// to 65,536 networks of 64 bits.
	networkPart = 10
	networkBits = 48
	// While the total debt is at least totalOwed, only tokens of addresses that have had no debt
	// for cleanAfter are verified. The debt reaches totalOwed with 25 ms at once for each
	// processor, or with 125 ms a second.
	totalPart  = 8
	totalOwed  = 200 * counter.Millisecond
	cleanAfter = 10 * counter.Second
	// Tokens that a key has signed are never rejected here, but a client may send a new one with
	// every request. An address with a debt of signedOwed for such tokens does not count as clean.
	// An address reaches that debt with 20 ms at once, or with 100 ms a second.
	signedPart = 10
	signedOwed = 200 * counter.Millisecond
	// owedMax is the greatest debt that is recorded, as a multiple of the debt at which tokens are
	// no longer verified.
	owedMax = 2

	// freeOfCharge is the cost up to which a token is not charged. That is about what the rest of
	// a request costs.
	freeOfCharge counter.Micros = 20
	// costMax bounds the charge for one token, at a few times the cost of the most expensive one.
	// If a verification took longer, other work on the machine interrupted it.
	costMax = 5 * counter.Millisecond
	// A token that is read but not verified is charged at most a microsecond for each readBytes
	// bytes. So a token of the usual length with an unknown key, as after a rotation, is free.
	readBytes = 50
)

const (
	meterRows    = 2
	meterBuckets = 1 << 13
	clientBits   = 64 // the number of leading bits of an IPv6 address that select its debt
)

// meter bounds the processor time for verifying tokens: per address, in total, and in parallel.
// Valid tokens are free, but an address with many of them waits in the same queue as addresses that
// send invalid ones.
//
// Addresses share the buckets of two rows. A secret hash chooses one bucket in each row. An address
// is charged in both buckets, and the smaller of their debts counts. With 1,000 attackers, one
// address in 70 shares both of its buckets with some of them. A meter takes 384 KiB, whatever the
// number of addresses. A meter is safe for concurrent use, and takes no lock.
type meter struct {
	// one gate for clean addresses and one for all others, so that these do not delay clean
	// addresses
	gates      [2]gate
	seed       maphash.Seed
	processors counter.Micros
	total      bucket
	garbage    sketch
	networks   sketch // the same as garbage, but for the IPv6 networks of the addresses
	signed     sketch
}

// sketch estimates how much verification time each address owes.
type sketch [meterRows][meterBuckets]bucket

// newMeter returns a meter for a number of processors. Clean addresses use at most half of the
// processors, and so do all other addresses together. But clean addresses have at least two slots.
// With a single slot, one interrupted verification would delay all of them.
func newMeter(processors int) *meter {
	m := &meter{seed: maphash.MakeSeed(), processors: counter.Micros(processors)}
	m.gates[0].slots = make(chan struct{}, max(2, processors/2))
	m.gates[1].slots = make(chan struct{}, max(1, processors/2))
	return m
}

// processMeter is the meter of all verifiers of the process, which share its processors.
var processMeter = sync.OnceValue(func() *meter { return newMeter(runtime.GOMAXPROCS(0)) })

// bucket is the instant at which a debt is paid off.
type bucket struct{ atomic.Int64 }

// lateMax bounds the difference between the instants that two concurrent callers pass. A token is
// charged at the instant at which its request was read, and may have waited since then.
const lateMax = 2 * waitMax

// bucket.owed returns the time until the debt is paid off. The result is at most the parameter
// named most. If it is negative, the debt was paid off that long ago. An instant that exceeds this
// bound by more than lateMax was written before the clock was set back, and counts as no debt.
func (b *bucket) owed(now, most counter.Micros) counter.Micros {
	if ahead := counter.Micros(b.Load()) - now; ahead <= most+lateMax {
		return min(ahead, most)
	}
	return 0
}

// bucket.pay adds an amount to the debt. The sum is at most the parameter named most, but the
// method never reduces a debt.
func (b *bucket) pay(now, amount, most counter.Micros) {
	for {
		before := b.Load()
		begin := counter.Micros(before)
		if begin < now || begin-now > most+lateMax {
			begin = now
		}
		if b.CompareAndSwap(before, int64(max(begin, min(begin+amount, now+most)))) {
			return
		}
	}
}

// cells holds the indexes of an address's buckets.
type cells [meterRows]int

// cellsOf returns the cells of an address. Of an IPv6 address, only the leading bits count.
func (m *meter) cellsOf(addr netip.Addr, bits int) (all cells) {
	text := addr.As16()
	if addr.Is6() {
		clear(text[bits/8:])
	}
	sum := maphash.Bytes(m.seed, text[:])
	for row := range all {
		all[row], sum = int(sum%meterBuckets), sum/meterBuckets
	}
	return all
}

// sketch.owed returns the debt of an address. The result is at most the parameter named most.
func (s *sketch) owed(of cells, now, most counter.Micros) counter.Micros {
	least := most
	for row, cell := range of {
		least = min(least, s[row][cell].owed(now, most))
	}
	return least
}

// sketch.pay adds an amount to the debt of an address. The sum is at most the parameter named most.
func (s *sketch) pay(of cells, now, amount, most counter.Micros) {
	for row, cell := range of {
		s[row][cell].pay(now, amount, most)
	}
}

// meter.admits reports whether a token from an address may be verified, and whether the
// address is clean. A clean address has had no debt for a while and does not send many signed
// tokens. For a token without an address, only the total counts.
func (m *meter) admits(addr netip.Addr, now counter.Micros) (ok, clean bool) {
	calm := m.total.owed(now, owedMax*totalOwed) < totalOwed
	if !addr.IsValid() {
		return calm, false
	}
	of := m.cellsOf(addr, clientBits)
	owed := m.garbage.owed(of, now, owedMax*addressOwed)
	if addr.Is6() && m.networks.owed(m.cellsOf(addr, networkBits), now, owedMax*addressOwed) >= addressOwed {
		return false, false
	}
	sentNone := owed <= -cleanAfter
	return owed < addressOwed && (calm || sentNone), sentNone && m.signed.owed(of, now, owedMax*signedOwed) < signedOwed
}

// meter.charge charges the cost of a token. The argument named signed reports whether one of the
// keys has signed it.
func (m *meter) charge(addr netip.Addr, now, cost counter.Micros, signed bool) {
	cost -= freeOfCharge
	if cost <= 0 {
		return
	}
	if !signed {
		m.total.pay(now, cost*totalPart/m.processors, owedMax*totalOwed)
	}
	switch {
	case !addr.IsValid():
	case signed:
		m.signed.pay(m.cellsOf(addr, clientBits), now, cost*signedPart, owedMax*signedOwed)
	default:
		m.garbage.pay(m.cellsOf(addr, clientBits), now, cost*addressPart, owedMax*addressOwed)
		if addr.Is6() {
			m.networks.pay(m.cellsOf(addr, networkBits), now, cost*networkPart, owedMax*addressOwed)
		}
	}
}

// Bounds of the wait for a processor.
const (
	// waitMax is how long a token may wait for a processor if the caller does not bound the wait.
	// After a restart, many clients send new tokens at once, and all of them should be verified.
	waitMax = counter.Second
	// waitersMax is the greatest number of waiting tokens.
	waitersMax = 4096
	// keptForClean is the part of a call's time that is reserved for clean addresses. All other
	// addresses have at most hurriedMax of the remaining time.
	keptForClean = 7 * counter.Millisecond
	hurriedMax   = counter.Millisecond
)

// gate admits at most as many concurrent callers as it has slots, in order of arrival.
type gate struct {
	slots   chan struct{}
	waiting atomic.Int64
}

// gate.enter waits for a slot, at most for the given time. It returns false if it did not get a
// slot. Otherwise the caller must call leave.
func (g *gate) enter(most counter.Micros) bool {
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

// inquiry is the verification of one token. The zero inquiry has no client and is not metered.
type inquiry struct {
	asker   *policy.Asker
	meter   *meter
	elapsed func() counter.Micros // a monotonic clock
	gate    *gate
	began   counter.Micros
	waited  counter.Micros
	costMax counter.Micros
}

// pastMax is how long after its expiry a token can still be used to report usage. Usual streams are
// shorter than that.
const pastMax = 24 * time.Hour

// inquiry.grace returns, in microseconds, how long ago the token may have expired.
func (q *inquiry) grace() int64 {
	if q.asker == nil || !q.asker.Past {
		return 0
	}
	return pastMax.Microseconds()
}

// inquiry.begin reports whether there is any time left for a token of the given length.
func (q *inquiry) begin(now counter.Micros, length int) bool {
	if q.asker == nil {
		return true
	}
	if !q.admitToken(now) || q.left() <= 0 {
		return q.reject()
	}
	q.began, q.costMax = q.elapsed(), counter.Micros(length/readBytes)
	return true
}

// admitToken reports whether a token of the client may be verified, and selects the gate at which
// it waits.
func (q *inquiry) admitToken(now counter.Micros) bool {
	ok, clean := q.meter.admits(q.asker.Addr, now)
	if q.gate = &q.meter.gates[1]; clean {
		q.gate = &q.meter.gates[0]
	}
	return ok
}

// inquiry.left returns how much time the token may take.
func (q *inquiry) left() counter.Micros {
	switch {
	case q.asker.Left == nil:
		return waitMax
	case q.gate == &q.meter.gates[0]:
		return *q.asker.Left
	default:
		return min(*q.asker.Left-keptForClean, hurriedMax)
	}
}

// inquiry.enter waits for a processor. It returns false if it got none. Otherwise the caller must
// call leave.
func (q *inquiry) enter(now counter.Micros) bool {
	if q.asker == nil {
		return true
	}
	start, gate := q.elapsed(), q.gate
	entered := gate.enter(q.left())
	q.waited = q.elapsed() - start
	switch {
	case !entered:
	// While this token waited, earlier tokens have used up the time of its address, or have shown
	// that the address is not clean and may not wait that long. Without this check, 200 tokens that
	// arrive together from an address without a debt would delay all clean addresses.
	case q.waited > 0 && (!q.admitToken(now+q.waited) || q.gate != gate && q.waited > q.left()):
		gate.leave()
	default:
		q.gate, q.costMax = gate, costMax
		return true
	}
	return q.reject()
}

// inquiry.leave releases the processor.
func (q *inquiry) leave() {
	if q.asker != nil {
		q.gate.leave()
	}
}

func (q *inquiry) reject() bool {
	q.asker.Unchecked = true
	return false
}

// inquiry.end charges the cost of the token, and subtracts the cost and the wait from the caller's
// time. The argument named signed is true if one of the keys has signed the token.
func (q *inquiry) end(now counter.Micros, signed bool) {
	if q.asker == nil {
		return
	}
	cost := min(q.elapsed()-q.began-q.waited, q.costMax)
	if q.asker.Left != nil {
		*q.asker.Left -= q.waited + cost
	}
	if !q.asker.Unchecked {
		q.meter.charge(q.asker.Addr, now, cost, signed)
	}
}
