// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"hash/maphash"
	"sync"

	"github.com/penstock/penstock/core/counter"
)

// Bounds of the memory of denials.
const (
	// DenialsMaxDefault is the default number of counters whose answers are remembered. The answers
	// take 10 MB. The system provides this memory when it is first used.
	DenialsMaxDefault = 1 << 16
	// DenialsMaxBound is the greatest number that can be configured. That many answers take 2.5 GB.
	DenialsMaxBound = 1 << 24
	// DenialMax is the longest time that a denial is remembered, whatever its own wait. DenialMax
	// bounds the time until a change by another node (a reset, a lifted penalty, a refund) takes
	// effect in this process.
	DenialMax = counter.Second
	// If a denial lasts longer than DenialMax, one call renews it, at the time lookAhead before the
	// denial would be forgotten. Without this call, all requests between the forgetting and the
	// next answer would call the store, perhaps a hundred at once under an attack.
	lookAhead = 50 * counter.Millisecond

	// asksMax is how many calls per second a remembered denial lets through to the store. These
	// calls have another check, without a remembered answer, which might deny for longer or have
	// fewer units left. Further calls get the remembered answer, so that a client that names
	// another counter in every request does not call the store each time.
	asksMax = 16

	setWays = 4   // the number of answers in one set
	locks   = 256 // this is more than the number of cores, so that calls seldom contend
)

// identity identifies a counter by two hashes of its key, with secret seeds. A table of keys would
// have no fixed size. The probability that two of a billion counters share both hashes is one in
// 10^20.
type identity [2]uint64

// seeds turn keys into identities.
type seeds [2]maphash.Seed

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) identify(key []byte) identity {
	return identity{maphash.Bytes(s[0], key), maphash.Bytes(s[1], key)}
}

// parameters holds the parameters of a limit or a penalty. An answer for other parameters is not
// used.
type parameters struct {
	count, burst int64
	window       counter.Micros
	algorithm    counter.Algorithm
	calendar     counter.CalendarUnit
}

func numbersOf(c *counter.Check) parameters {
	if p := c.Penalty; p != nil {
		return parameters{count: p.Threshold, burst: int64(p.Max), window: p.Window}
	}
	l := c.Limit
	return parameters{l.Count(), l.Capacity(), l.Window(), l.Algorithm(), l.Calendar()}
}

// answer is the store's result for one counter in a call that it denied.
type answer struct {
	identity identity
	numbers  parameters
	// when the call was sent, on this process's clock; the answer's times count from then or later
	sent counter.Micros
	// the time until which the answer is used, on this process's clock; 0 means that the slot is
	// empty
	until counter.Micros
	// the time at which one call renews the answer, on this process's clock; 0 means never, or that
	// a call is under way
	again counter.Micros
	at    counter.Micros // the instant of the answer on the store's clock
	cost  int64          // the denied cost; the constant "passed" if the check did not deny
	wait  counter.Micros // the wait of a denial
	// the identity of the violation that the client's penalty recorded for a denial. The identity
	// is 0 if none was recorded.
	guard      uint64
	remaining  int64
	reset      counter.Micros
	next       counter.Micros
	leasedIn   counter.Micros
	violations int64
	asks       uint8          // the number of calls sent to the store because of other checks
	asksUntil  counter.Micros // the end of the period in which asks counts calls, on this process's clock
}

// passed marks an answer that is not a denial. The mark is stored as the lowest denied cost, and
// exceeds every cost.
const passed = counter.CountMax + 2

// set holds the answers of keys that share a place in the table.
type set struct {
	forgot counter.Micros // when an answer of the set was last forgotten
	ways   [setWays]answer
}

// denials remembers the answers to calls that were denied. The size of the table is fixed. A full
// set evicts the least valuable answer; an evicted answer costs one call to the store.
type denials struct {
	seeds
	mask  uint64
	sets  []set
	locks [locks]struct {
		sync.Mutex
		_ [56]byte // each has its own cache line
	}
}

func newDenials(most int, s seeds) *denials {
	d := &denials{seeds: s}
	n := 1
	for n*2*setWays <= most {
		n *= 2
	}
	d.sets, d.mask = make([]set, n), uint64(n-1)
	return d
}

// denials.knows fills in the remembered answer for a check and reports whether there is one.
func (d *denials) knows(now counter.Micros, checks []counter.Check, i int, r *counter.Result, p *recorder) bool {
	known, _ := d.recall(now, checks, i, r, p)
	return known
}

// denials.lock locks the set of an identity. It returns the set and its lock, which the caller
// unlocks.
func (d *denials) lock(id identity) (*set, *sync.Mutex) {
	index := id[0] & d.mask
	mu := &d.locks[index%locks].Mutex
	mu.Lock()
	return &d.sets[index], mu
}

// set.find returns the answer for a counter, or nil if there is none. The caller holds the lock.
func (s *set) find(id identity, now counter.Micros) *answer {
	for i := range s.ways {
		if w := &s.ways[i]; w.identity == id && w.until > now {
			return w
		}
	}
	return nil
}

// recorder is the penalty that records the violations of a call.
type recorder struct {
	check int    // the position of the penalty in the call, counted from 1
	id    uint64 // half of the penalty's identity, which suffices together with the counter's identity
	// when a penalty in the same set was last lifted; violations recorded before then might be
	// deleted
	forgot counter.Micros
}

// recorder.violation returns the identity of a violation's record.
func (p *recorder) violation(id int64) uint64 { return p.id ^ uint64(id)<<1 | 1 }

// denials.recall answers a check from memory. The result named known reports whether there is a
// remembered answer, and the result named denies whether that answer denies the call. The argument
// p is the recorder of the previous check, which recall updates.
func (d *denials) recall(now counter.Micros, checks []counter.Check, i int, r *counter.Result, p *recorder) (known, denies bool) {
	known, denies, _ = d.recallOrLook(now, checks, i, r, p, false)
	return known, denies
}

// recallOrLook is like recall. If the argument may is true, the call may be sent to the store to
// renew a denial. The result looks reports whether it must be sent.
func (d *denials) recallOrLook(now counter.Micros, checks []counter.Check, i int, r *counter.Result, p *recorder, may bool) (known, denies, looks bool) {
	c := &checks[i]
	if c.Guard != 0 && c.Guard != p.check {
		*p = d.recorder(checks, c.Guard)
	}
	id := d.identify(c.Key)
	s, mu := d.lock(id)
	defer mu.Unlock()
	if c.Penalty != nil {
		*p = recorder{i + 1, id[0], s.forgot}
	}
	a := s.find(id, now)
	if a == nil || a.numbers != numbersOf(c) {
		return false, false, false
	}
	a.fill(now, c, r)
	denies = r.Denied && (c.Guard == 0 || a.guard == p.violation(c.Violation) && a.sent > p.forgot)
	if looks = may && denies && a.again != 0 && a.again <= now; looks {
		a.again = 0
	}
	return true, denies, looks
}

// mayAsk reports whether a call that check c denies may still go to the store because of its other
// checks.
func (d *denials) mayAsk(now counter.Micros, c *counter.Check) bool {
	id := d.identify(c.Key)
	s, mu := d.lock(id)
	defer mu.Unlock()
	a := s.find(id, now)
	switch {
	case a == nil:
		return false
	case a.asksUntil <= now:
		a.asks, a.asksUntil = 0, now+DenialMax
	case a.asks >= asksMax:
		return false
	}
	a.asks++
	return true
}

// denials.outdate drops answers that are not denials, for counters that a later call has charged.
func (d *denials) outdate(checks []counter.Check) {
	for i := range checks {
		if checks[i].Limit == nil {
			continue
		}
		id := d.identify(checks[i].Key)
		s, mu := d.lock(id)
		for k := range s.ways {
			if w := &s.ways[k]; w.identity == id && w.cost == passed {
				*w = answer{}
			}
		}
		mu.Unlock()
	}
}

// denials.recorder returns the penalty at a position of the call.
func (d *denials) recorder(checks []counter.Check, number int) recorder {
	id := d.identify(checks[number-1].Key)
	s, mu := d.lock(id)
	defer mu.Unlock()
	return recorder{number, id[0], s.forgot}
}

// answer.fill sets r to the result of an answer at the present instant. At + Wait and At + Reset
// remain the same instants.
func (a *answer) fill(now counter.Micros, c *counter.Check, r *counter.Result) {
	elapsed := now - a.sent
	*r = counter.Result{At: a.at + elapsed, Remaining: a.remaining, Reset: max(0, a.reset-elapsed),
		Next: max(0, a.next-elapsed), LeasedIn: max(0, a.leasedIn-elapsed), Violations: a.violations}
	cost := max(1, c.Cost)
	if cost < a.cost {
		return
	}
	if r.Wait = a.waitOf(c, cost); r.Wait != counter.Never {
		r.Wait -= elapsed
	}
	r.Denied = c.Cost > 0 || c.Penalty != nil
}

// waitOf returns how long a cost had to wait when the answer was given. For a greater cost than the
// denied one, the result is exact for fixed windows, and for token buckets exact to one step of
// their refill. For other algorithms, the wait is a lower bound: a client that returns then is
// denied again with the rest of the wait.
func (a *answer) waitOf(c *counter.Check, cost int64) counter.Micros {
	switch {
	case c.Penalty != nil || cost == a.cost:
		return a.wait
	case cost > c.Limit.Capacity():
		return counter.Never
	case c.Limit.Algorithm() == counter.TokenBucket:
		unit, refill, tick := c.Limit.Arithmetic()
		return a.wait + counter.Micros(((cost-a.cost)*unit+refill-1)/refill)*tick
	default:
		return a.wait
	}
}

// unknown returns the result of a check without a remembered answer, in a call that another check
// denies. The result is that of an unused counter.
func unknown(at counter.Micros, c *counter.Check) counter.Result {
	r := counter.Result{At: at}
	if c.Limit != nil {
		r.Remaining = c.Limit.Capacity()
	}
	return r
}

// denials.learn remembers the answer to a call that the store denied. The call was sent and
// answered at the given instants.
func (d *denials) learn(sent, received counter.Micros, checks []counter.Check, results []counter.Result) {
	for i := range checks {
		c, r := &checks[i], &results[i]
		if c.Shadow || r.Overflow {
			continue
		}
		a := answer{identity: d.identify(c.Key), numbers: numbersOf(c), sent: sent, until: sent + DenialMax, at: r.At,
			cost: passed, wait: r.Wait, remaining: r.Remaining, reset: r.Reset, next: r.Next, leasedIn: r.LeasedIn,
			violations: r.Violations}
		if r.Denied {
			if a.cost = max(1, c.Cost); c.Op == counter.OpUpTo {
				a.cost = c.Min
			}
			lasts := r.Wait
			if r.LeasedIn > 0 { // a refund takes as long to arrive as an answer
				lasts = min(lasts, r.LeasedIn+(received-sent))
			}
			a.until = sent + min(DenialMax, lasts)
			if lasts > DenialMax {
				a.again = a.until - lookAhead
			}
			a.guard = d.guardOf(checks, results, i)
		}
		s, mu := d.lock(a.identity)
		// a change, such as a reset, made the set forget its answers; the answer to a call that was
		// sent earlier might not include this change
		if s.forgot < sent {
			s.put(&a, received)
		}
		mu.Unlock()
	}
}

// guardOf returns the identity of the violation that was recorded for a denial, or 0 if there is
// none. A penalty that is in force records nothing. If the cost can never pass, guardOf returns an
// identity although no violation was recorded. An answer from memory records none either, as such a
// denial is not a violation.
func (d *denials) guardOf(checks []counter.Check, results []counter.Result, i int) uint64 {
	guard := checks[i].Guard
	if guard == 0 || results[guard-1].Denied {
		return 0
	}
	p := recorder{id: d.identify(checks[guard-1].Key)[0]}
	return p.violation(checks[i].Violation)
}

// set.put stores an answer in place of the counter's last one, in a free slot, or in place of the
// least valuable answer. The caller holds the lock.
func (s *set) put(a *answer, now counter.Micros) {
	victim := &s.ways[0]
	for i := range s.ways {
		w := &s.ways[i]
		if w.identity == a.identity {
			if w.until > now && w.covers(a) {
				return
			}
			a.asks, a.asksUntil = w.asks, w.asksUntil
			victim = w
			break
		}
		if w.worth(now) < victim.worth(now) {
			victim = w
		}
	}
	*victim = *a
}

// answer.covers reports whether an unexpired answer denies at least everything that another
// answer for the same counter denies.
func (a *answer) covers(other *answer) bool {
	return a.numbers == other.numbers && a.cost < other.cost && (other.cost == passed || a.guard == other.guard)
}

// answer.worth orders answers by their value: expired answers are worth least, then answers that
// are not denials, then denials by their remaining time.
func (a *answer) worth(now counter.Micros) counter.Micros {
	switch left := a.until - now; {
	case left <= 0:
		return 0
	case a.cost == passed:
		return 1
	default:
		return 1 + left
	}
}

// denials.forget drops the answers for a counter, including an answer that has not arrived yet.
func (d *denials) forget(now counter.Micros, id identity) {
	s, mu := d.lock(id)
	defer mu.Unlock()
	s.forgot = now
	for i := range s.ways {
		if w := &s.ways[i]; w.identity == id {
			*w = answer{}
		}
	}
}
