// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"hash/maphash"
	"sync"

	"github.com/penstock/penstock/core"
)

// Bounds of the memory of refusals.
const (
	// DenialsMaxDefault is how many counters' answers are remembered unless told otherwise: 10 MB of them, which the
	// system hands out as they are used.
	DenialsMaxDefault = 1 << 16
	// DenialsMaxBound is the greatest number that can be asked for: 2.5 GB.
	DenialsMaxBound = 1 << 24
	// DenialMax is the longest that a refusal is remembered, whatever its own wait: what another node does (a reset, a
	// lifted penalty, a settlement that gives back) is felt here no later than that.
	DenialMax = core.Second
	// lookAhead is how long before the end of a refusal that lasts for DenialMax, and would last longer, one call goes to the
	// store to have it anew: otherwise all who ask until that is answered would call, a hundred at once under an attack.
	lookAhead = 50 * core.Millisecond

	// asksMax is how many calls go to the store in a second, of those that one refusal denies, because of another check that nothing is
	// known of: that check may deny for longer, or have less left. Further ones are told what is known, so that a client whose
	// every request names another counter does not reach the store with each.
	asksMax = 16

	setWays = 4   // answers that one set of keys has room for
	locks   = 256 // more than there are cores, so that calls seldom meet
)

// identity is what a counter is known by: two hashes of its key, by seeds that nobody outside knows. A table that kept the
// keys would be of no fixed size; and of a billion counters two share both hashes once in 10^20 tries.
type identity [2]uint64

// seeds make identities of keys.
type seeds [2]maphash.Seed

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) identify(key []byte) identity {
	return identity{maphash.Bytes(s[0], key), maphash.Bytes(s[1], key)}
}

// numbers are what a limit, or a penalty, is made of. An answer by other numbers says nothing.
type numbers struct {
	count, burst int64
	window       core.Micros
	algorithm    core.Algorithm
	calendar     core.CalendarUnit
}

func numbersOf(c *core.Check) numbers {
	if p := c.Penalty; p != nil {
		return numbers{count: p.Threshold, burst: int64(p.Max), window: p.Window}
	}
	l := c.Limit
	return numbers{l.Count(), l.Capacity(), l.Window(), l.Algorithm(), l.Calendar()}
}

// answer is what the store said of a counter in a call that it refused.
type answer struct {
	identity identity
	numbers  numbers
	sent     core.Micros // on this process's clock, when it was asked: its spans count from there at the latest
	until    core.Micros // on this process's clock, until when it is of use; 0: there is no answer here
	again    core.Micros // on this process's clock, from when one call is to ask again; 0: none, or one does
	at       core.Micros // on the store's
	cost     int64       // that was refused; of one that was not, more than any
	wait     core.Micros // of a refusal
	// guard is, of a refusal, what it was recorded as in the client's penalty; 0 if it was not.
	guard      uint64
	remaining  int64
	reset      core.Micros
	next       core.Micros
	leasedIn   core.Micros
	violations int64
	asks       uint8       // calls that went to the store because of other checks
	asksUntil  core.Micros // on this process's clock, until when they are counted
}

// passed stands for the cost of an answer that is no refusal.
const passed = core.CountMax + 2

// set is where the answers of the keys are that share a place.
type set struct {
	forgot core.Micros // when one of them was forgotten last
	ways   [setWays]answer
}

// denials remembers the answers to calls that were refused. It is of fixed size: where there is no room, what ends first
// is forgotten, which costs a call and nothing else.
type denials struct {
	seeds
	mask  uint64
	sets  []set
	locks [locks]struct {
		sync.Mutex
		_ [56]byte // a cache line each
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

// knows fills in what is known of a check and reports whether anything is.
func (d *denials) knows(now core.Micros, checks []core.Check, i int, r *core.Result, p *recorder) bool {
	known, _ := d.recall(now, checks, i, r, p)
	return known
}

// lock returns the set of an identity, locked.
func (d *denials) lock(id identity) (*set, *sync.Mutex) {
	index := id[0] & d.mask
	mu := &d.locks[index%locks].Mutex
	mu.Lock()
	return &d.sets[index], mu
}

// find returns what is known of a counter by these numbers, nil if nothing is. The caller holds the lock.
func (s *set) find(id identity, now core.Micros) *answer {
	for i := range s.ways {
		if w := &s.ways[i]; w.identity == id && w.until > now {
			return w
		}
	}
	return nil
}

// recorder is the penalty whose record the violations of a call go to.
type recorder struct {
	check  int         // its number in the call, counted from 1
	id     uint64      // half of its identity is enough beside that of the counter
	forgot core.Micros // when it, or what shares its place, was lifted last: violations of before may be forgotten
}

// violation is what a refusal is known by in the record.
func (p *recorder) violation(id int64) uint64 { return p.id ^ uint64(id)<<1 | 1 }

// recall answers a check from memory. known says that there was something to remember; refuses that it refuses the call.
// p is the penalty that the check before counted in, if one did.
func (d *denials) recall(now core.Micros, checks []core.Check, i int, r *core.Result, p *recorder) (known, refuses bool) {
	known, refuses, _ = d.recallOrLook(now, checks, i, r, p, false)
	return known, refuses
}

// recallOrLook is recall for a call that may look ahead: looks says that it is the one to ask the store.
func (d *denials) recallOrLook(now core.Micros, checks []core.Check, i int, r *core.Result, p *recorder, may bool) (known, refuses, looks bool) {
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
	a.tell(now, c, r)
	refuses = r.Refused && (c.Guard == 0 || a.guard == p.violation(c.Violation) && a.sent > p.forgot)
	if looks = may && refuses && a.again != 0 && a.again <= now; looks {
		a.again = 0
	}
	return true, refuses, looks
}

// mayAsk reports whether a call that a check refuses may go to the store because of its other checks.
func (d *denials) mayAsk(now core.Micros, c *core.Check) bool {
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

// outdate forgets what was said of counters that did not refuse, when a call has taken from them since.
func (d *denials) outdate(checks []core.Check) {
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

// recorder returns the penalty that is a check of the call.
func (d *denials) recorder(checks []core.Check, number int) recorder {
	id := d.identify(checks[number-1].Key)
	s, mu := d.lock(id)
	defer mu.Unlock()
	return recorder{number, id[0], s.forgot}
}

// tell fills in what an answer says of a check now. Instants stay what they were: At + Wait and At + Reset do not move.
func (a *answer) tell(now core.Micros, c *core.Check, r *core.Result) {
	elapsed := now - a.sent
	*r = core.Result{At: a.at + elapsed, Remaining: a.remaining, Reset: max(0, a.reset-elapsed),
		Next: max(0, a.next-elapsed), LeasedIn: max(0, a.leasedIn-elapsed), Violations: a.violations}
	cost := max(1, c.Cost)
	if cost < a.cost {
		return
	}
	if r.Wait = a.waitOf(c, cost); r.Wait != core.Never {
		r.Wait -= elapsed
	}
	r.Refused = c.Cost > 0 || c.Penalty != nil
}

// waitOf returns how long a cost had to wait when the answer was asked for. Of one greater than that which was refused it
// is exact for fixed windows and, but for a tick, for buckets. Otherwise it is the least that it can be: a client that
// comes back then is told the rest.
func (a *answer) waitOf(c *core.Check, cost int64) core.Micros {
	switch {
	case c.Penalty != nil || cost == a.cost:
		return a.wait
	case cost > c.Limit.Capacity():
		return core.Never
	case c.Limit.Algorithm() == core.TokenBucket:
		unit, refill, tick := c.Limit.Arithmetic()
		return a.wait + core.Micros(((cost-a.cost)*unit+refill-1)/refill)*tick
	default:
		return a.wait
	}
}

// unknown is the result of a check that nothing is known of, in a call that another check refuses: a counter never used.
func unknown(at core.Micros, c *core.Check) core.Result {
	r := core.Result{At: at}
	if c.Limit != nil {
		r.Remaining = c.Limit.Capacity()
	}
	return r
}

// learn remembers what the store said, between sent and received, of a call that it refused.
func (d *denials) learn(sent, received core.Micros, checks []core.Check, results []core.Result) {
	for i := range checks {
		c, r := &checks[i], &results[i]
		if c.Shadow || r.Overflow {
			continue
		}
		a := answer{identity: d.identify(c.Key), numbers: numbersOf(c), sent: sent, until: sent + DenialMax, at: r.At,
			cost: passed, wait: r.Wait, remaining: r.Remaining, reset: r.Reset, next: r.Next, leasedIn: r.LeasedIn,
			violations: r.Violations}
		if r.Refused {
			if a.cost = max(1, c.Cost); c.Op == core.OpUpTo {
				a.cost = c.Min
			}
			lasts := r.Wait
			if r.LeasedIn > 0 { // units that come back travel as far as answers do
				lasts = min(lasts, r.LeasedIn+(received-sent))
			}
			a.until = sent + min(DenialMax, lasts)
			if lasts > DenialMax {
				a.again = a.until - lookAhead
			}
			a.guard = d.guardOf(checks, results, i)
		}
		s, mu := d.lock(a.identity)
		if s.forgot < sent { // otherwise the store may have answered before what it was told to forget
			s.put(&a, received)
		}
		mu.Unlock()
	}
}

// guardOf returns what a refusal was recorded as, 0 if it was not: a penalty that is in force may have been before, and then
// records nothing. What can never pass is no violation, so nothing is missed with it.
func (d *denials) guardOf(checks []core.Check, results []core.Result, i int) uint64 {
	guard := checks[i].Guard
	if guard == 0 || results[guard-1].Refused {
		return 0
	}
	p := recorder{id: d.identify(checks[guard-1].Key)[0]}
	return p.violation(checks[i].Violation)
}

// put keeps an answer in place of the counter's last one, of none, or of that which is worth least. The caller holds the
// lock.
func (s *set) put(a *answer, now core.Micros) {
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

// covers reports whether an answer, which still holds, refuses more than another about the same counter.
func (a *answer) covers(other *answer) bool {
	return a.numbers == other.numbers && a.cost < other.cost && (other.cost == passed || a.guard == other.guard)
}

// worth orders answers by what is lost with them: nothing with one that is over, numbers with one that is no refusal, and
// with a refusal as much as it still has to last.
func (a *answer) worth(now core.Micros) core.Micros {
	switch left := a.until - now; {
	case left <= 0:
		return 0
	case a.cost == passed:
		return 1
	default:
		return 1 + left
	}
}

// forget drops what is known of a counter, and what the store is saying of it at this moment.
func (d *denials) forget(now core.Micros, id identity) {
	s, mu := d.lock(id)
	defer mu.Unlock()
	s.forgot = now
	for i := range s.ways {
		if w := &s.ways[i]; w.identity == id {
			*w = answer{}
		}
	}
}
