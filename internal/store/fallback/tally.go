// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// TalliesMax is the greatest number of counters with a tally. When there are more, tallies are
// dropped.
const TalliesMax = 1 << 16

const (
	tallyShards = 64
	// tallySpanMax bounds how long a tally lasts after the last request that needed it.
	tallySpanMax = 400 * 24 * time.Hour
)

// tallies holds counts of admissions in memory: one for each counter for which this process has
// decided a request in place of the store. A tally counts the admissions by this process and by the
// store. The store has not yet recorded the requests that this process admitted. Without the tally,
// the store and this process would each admit the whole limit.
type tallies struct {
	count  atomic.Int64 // the number of tallies; while it is 0, as usual, a check costs one load
	shards [tallyShards]tallyShard
}

type tallyShard struct {
	mu    sync.Mutex
	byKey map[string]*tally
}

// tally is the tally of one counter. Its count is in the local store.
type tally struct {
	until time.Time // when the units of the last request that this process decided expire
	// doubt is the number of units that the store might not have charged. These are the units that
	// this process admitted for calls with an unknown outcome, and the units of calls that this
	// process is deciding at the moment.
	doubt int64
}

func (s *Store) tallyShard(key []byte) *tallyShard {
	return &s.tallies.shards[maphash.Bytes(s.owed.seed, key)%tallyShards]
}

// tallied reports whether a check gets a tally when this process decides it.
func tallied(c *counter.Check) bool { return counts(c) && !c.Shadow }

// tallySuffix ends the key of a tally under on_error: local, because the key without it counts
// requests against the share of this node.
const tallySuffix = ":whole"

// tallyKey returns the key of a check's tally in the local store. The key is valid until t.text is
// reset.
func (t *localCall) tallyKey(c *counter.Check) []byte {
	if c.OnError != counter.OnErrorLocal {
		return c.Key
	}
	start := len(t.text)
	t.text = append(append(t.text, c.Key...), tallySuffix...)
	return t.text[start:len(t.text):len(t.text)]
}

// addTally is called for a check under on_error: local. It adds a second check, which counts the
// same units in the counter's tally, under the full limit. So this process denies requests that, as
// far as it knows, exceed the limit.
func (t *localCall) addTally(i int, c *counter.Check) {
	if c.Shadow || len(t.checks) == counter.ChecksMax {
		return
	}
	whole := counter.Check{Key: t.tallyKey(c), ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Refundable: c.Refundable,
		Op: counter.OpTake, Cost: unitsOf(c)}
	t.checks, t.results, t.parts = append(t.checks, whole), append(t.results, counter.Result{}), append(t.parts, i)
}

// startTallies starts the tallies of a call that this process decides. The caller must read the
// store's last report only after startTallies, so that each admission by the store is in the tally,
// in the report, or in both. The units are in doubt until [Store.settleDoubt] is called.
func (s *Store) startTallies(checks []counter.Check) {
	now := s.options.Now()
	for i := range checks {
		if c := &checks[i]; tallied(c) {
			s.startTally(c, now)
		}
	}
}

// startTally starts or extends one tally.
func (s *Store) startTally(c *counter.Check, now time.Time) {
	sh := s.tallyShard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.byKey[string(c.Key)]
	switch {
	case t == nil:
		if sh.byKey == nil {
			sh.byKey = make(map[string]*tally)
		}
		if len(sh.byKey) >= TalliesMax/tallyShards {
			s.dropTally(sh, now)
		}
		t = new(tally)
		sh.byKey[string(c.Key)] = t
		s.tallies.count.Add(1)
	case s.ended(t, c.Limit, now):
		t.doubt = 0
	}
	t.until, t.doubt = now.Add(spanOf(c.Limit)), min(t.doubt+unitsOf(c), counter.CountMax)
}

// Store.ended reports whether the units of a tally have expired. The units of a token bucket expire
// only when the bucket is full again, which can be later than t.until. So the tally of a token
// bucket ends only when the store reports at least as much usage as the tally has.
func (s *Store) ended(t *tally, l *counter.Limit, now time.Time) bool {
	return now.After(t.until) && l.Algorithm() != counter.TokenBucket
}

// dropTally makes room in a full shard. It examines a few tallies and drops those whose time is
// over. If no tally is dropped for this reason, it drops the one with the fewest units in doubt. So
// made-up clients, with a unit each, do not displace a tally with many units. Without that tally,
// its client would get the limit again. The caller holds the lock.
func (s *Store) dropTally(sh *tallyShard, now time.Time) {
	const glances = 16
	before, least, looked := len(sh.byKey), "", 0
	for key, t := range sh.byKey {
		if now.After(t.until) {
			delete(sh.byKey, key)
		} else if least == "" || t.doubt < sh.byKey[least].doubt {
			least = key
		}
		if looked++; looked == glances {
			break
		}
	}
	if len(sh.byKey) == before {
		delete(sh.byKey, least)
	}
	s.tallies.count.Add(int64(len(sh.byKey) - before))
}

// findTally returns the tally of a counter, and drops it if it has ended.
func (s *Store) findTally(c *counter.Check) (t tally, found bool) {
	sh := s.tallyShard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	kept := sh.byKey[string(c.Key)]
	switch {
	case kept == nil:
		return tally{}, false
	case s.ended(kept, c.Limit, s.options.Now()):
		delete(sh.byKey, string(c.Key))
		s.tallies.count.Add(-1)
		return tally{}, false
	}
	return *kept, true
}

// endTally ends a tally. If onlyLate is true, endTally ends the tally only if the tally's time is
// over.
func (s *Store) endTally(key []byte, onlyLate bool) {
	sh := s.tallyShard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.byKey[string(key)]
	if t == nil || onlyLate && !s.options.Now().After(t.until) {
		return
	}
	delete(sh.byKey, string(key))
	s.tallies.count.Add(-1)
}

// addDoubt changes the units in doubt of a counter.
func (s *Store) addDoubt(key []byte, units int64) {
	sh := s.tallyShard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t := sh.byKey[string(key)]; t != nil {
		t.doubt = min(max(0, t.doubt+units), counter.CountMax)
	}
}

// settleDoubt subtracts the units of checks from the units in doubt: the checks were denied, or
// their units are owed.
func (s *Store) settleDoubt(checks []counter.Check) {
	for i := range checks {
		if c := &checks[i]; tallied(c) {
			s.addDoubt(c.Key, -unitsOf(c))
		}
	}
}

// spanOf returns the longest time for which a unit counts.
func spanOf(l *counter.Limit) time.Duration {
	span := float64(l.Window()) * float64(time.Microsecond)
	switch {
	case l.Algorithm() == counter.TokenBucket:
		span *= float64(l.Capacity()) / float64(l.Count())
	case l.Calendar() != 0:
		span *= 2 // because a calendar window can be longer than Window says
	}
	return min(time.Duration(min(span, float64(tallySpanMax))), tallySpanMax)
}

// Store.tally updates the tallies of a call's counters: it adds the units that the shared store has
// charged, and subtracts refunds. If a tally then exceeds its limit, the request is denied, because
// this process admitted units of which the store had no record when it answered. The store's
// charges for the request are not refunded.
func (s *Store) tally(checks []counter.Check, results []counter.Result) {
	if s.tallies.count.Load() == 0 {
		return
	}
	t := localCalls.Get().(*localCall)
	defer localCalls.Put(t)
	t.checks, t.results, t.parts, t.text = t.checks[:0], t.results[:0], t.parts[:0], t.text[:0]
	admitted := !anyDenied(checks, results)
	for i := range checks {
		c := &checks[i]
		local, counted := tallyCheck(c, &results[i], admitted)
		if !counted {
			continue
		}
		if _, found := s.findTally(c); found {
			local.Key = t.tallyKey(c)
			t.checks, t.results, t.parts = append(t.checks, local), append(t.results, counter.Result{}), append(t.parts, i)
		}
	}
	if len(t.checks) == 0 {
		return
	}
	if s.local.Take(context.Background(), t.checks, t.results) == nil && !s.agree(t, checks, results) {
		s.disagree(t, checks, results)
	}
	clear(t.checks) // their keys belong to the caller
}

// tallyCheck returns the check that counts, in this process's memory, what the shared store
// answered. The result named counted is false if there is nothing to count.
func tallyCheck(c *counter.Check, r *counter.Result, admitted bool) (local counter.Check, counted bool) {
	if c.Limit == nil || c.Shadow {
		return local, false
	}
	local = counter.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Refundable: c.Refundable, Op: c.Op}
	switch c.Op {
	case counter.OpTake:
		local.Cost = c.Cost
		return local, admitted && c.Cost > 0
	case counter.OpUpTo:
		local.Cost, local.Min, local.Max = r.Granted, min(c.Min, r.Granted), r.Granted
		return local, admitted && r.Granted > 0
	case counter.OpForce:
		local.Cost = r.Granted
		return local, r.Granted > 0
	case counter.OpRefund:
		// In a sliding log, the receipt is the instant of a charge in the shared store. The local
		// store has no charge at that instant.
		local.Cost, local.Receipt = r.Granted, c.Receipt
		return local, r.Granted > 0 && c.Limit.Algorithm() != counter.SlidingLog
	case counter.OpReset:
		return local, true
	}
	return local, false
}

// Store.agree completes a call that the store has admitted. It returns false if the tallies deny
// the call and insist does not overrule them.
func (s *Store) agree(t *localCall, checks []counter.Check, results []counter.Result) bool {
	if anyDenied(t.checks, t.results) && !s.insist(t, checks, results) {
		return false
	}
	for k, i := range t.parts {
		c, r, local := &checks[i], &results[i], &t.results[k]
		switch {
		case c.Op == counter.OpReset:
			s.endTally(c.Key, false)
		case c.Op == counter.OpUpTo && local.Granted > 0:
			r.Granted = local.Granted
		case c.Op == counter.OpTake && local.Remaining >= r.Remaining: // the store counts no fewer units than the tally
			s.endTally(c.Key, true)
		}
	}
	return true
}

// Store.insist handles a call that the tallies denied although the store admitted it. If all limits
// of the call have room according to the store's reports, insist counts the call and returns true.
// If a limit has no room, insist does not count the call and returns false. The units are counted
// before the limits are examined, and taken back if the call is not counted. So of two requests
// that this process decides at the same time, at least one sees the units of the other.
func (s *Store) insist(t *localCall, checks []counter.Check, results []counter.Result) bool {
	fits := true
	for k, i := range t.parts {
		c := &t.checks[k]
		if c.Op != counter.OpTake && c.Op != counter.OpUpTo {
			continue
		}
		t.one[0] = *c
		t.one[0].Op = counter.OpForce
		// if this fails, the tally misses the units
		_ = s.local.Take(context.Background(), t.one[:], t.result[:])
		c.Receipt, c.Cost = t.result[0].Receipt, t.result[0].Granted
		if local := &t.results[k]; local.Denied && !local.Overflow {
			fits = fits && s.fits(&checks[i], &results[i])
		}
	}
	for k := range t.parts {
		if c := &t.checks[k]; !fits && c.Op <= counter.OpUpTo && c.Cost > 0 {
			t.one[0] = *c
			t.one[0].Op = counter.OpRefund
			// if this fails, the tally counts too much
			_ = s.local.Take(context.Background(), t.one[:], t.result[:])
		}
	}
	t.one[0] = counter.Check{}
	return fits
}

// Store.fits reports whether a limit has room, according to the store's reports, for all
// units: those that the store has charged, those that are owed and those in doubt. The count in
// memory can be too high after a reset or a refund by another process.
//
// Units can move from one of these three numbers to another while fits reads them. So the order of
// reading matters: units can be counted twice, but none is missed. If the store reports that no
// units remain, it might have charged more than the limit, so there is no room.
func (s *Store) fits(c *counter.Check, r *counter.Result) bool {
	if c.Limit.Algorithm() == counter.TokenBucket {
		return false // debts of a bucket are dropped before the bucket is full
	}
	before, _ := s.findTally(c)
	owed := s.owed.uncharged(c.Key)
	after, _ := s.findTally(c)
	capacity := c.Limit.Capacity()
	used := capacity - r.Remaining
	if s.options.Known != nil {
		used = max(used, s.options.Known(c))
	}
	return used < capacity && used+owed+max(before.doubt, after.doubt) <= capacity
}

// Store.disagree denies a call that the shared store has admitted.
func (s *Store) disagree(t *localCall, checks []counter.Check, results []counter.Result) {
	for i := range results {
		results[i] = counter.Result{At: results[i].At, Local: true}
	}
	for k, i := range t.parts {
		if local := &t.results[k]; local.Denied && !local.Overflow {
			results[i].Denied, results[i].Wait = true, local.Wait
		}
	}
}

// anyDenied reports whether a call was denied.
func anyDenied(checks []counter.Check, results []counter.Result) bool {
	for i := range checks {
		if results[i].Denied && !checks[i].Shadow {
			return true
		}
	}
	return false
}
