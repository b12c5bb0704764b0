// SPDX-License-Identifier: Apache-2.0

package counter

// A lease is a set of units that are charged now and used later, within an age that the caller
// states. Refunded units are credited to the window in which they were charged.
//
// A unit of a fixed, sliding or calendar window must be used before the end of the window in which
// it was charged. The caller ensures this. So the usage of a window never exceeds the charges of
// that window, and the sliding estimate of the usage never exceeds the estimate of the charges.
// These counters only record the end of the last lease.
//
// A token bucket guarantees at most burst + rate·T in any span T. A leased unit can be used until
// an age A after it left the bucket, and the bucket refills in the meantime. Two rules preserve the
// guarantee:
//
//   - A lease is granted only from a bucket that lacks at least rate·A. A bucket that lacks less is
//     lowered to that level; this is the clip.
//   - A refund of n units of a lease is reduced by the refill since its grant. The refill is
//     computed until now, or until A before the last instant at which any leased unit can be used,
//     whichever is later: max(0, n − rate·(max(now, Leased − A) − Receipt)).
//
// Ages can differ, because processes far from the store need longer ones.
//
// A charge whose units are used at once needs no clip. The charge's unused units are refunded with
// an Age of one microsecond. Such a charge counts as a lease of no duration, since a leased unit is
// used before its age has passed. A settlement refunds without an Age, even leased units: it
// restores what the bucket still lacks because of the charge. At any grant, the sum of these
// refunds is at most what the bucket lacks beyond the clip (see [Dip]). So the sum can be added to
// T below.
//
// Proof. Let A be the age minus one microsecond: a unit that is used before the age has passed is
// used within A. Consider a grant at g. Let T be the tokens in the bucket after the clip and before
// the charge. Let d = g + A be the end of the lease. Every older lease j, granted at g(j) for A(j),
// has x(j) units left. The credit to j at g or later is at most c(j) = max(0, x(j) − rate·max(g −
// g(j), d − d(j))), because Leased is at least d until d.
//
//  1. At every grant T + Σ c(j) ≤ burst − rate·A. If no c(j) is positive, the clip ensures this.
//     Otherwise let i be the oldest lease with c(i) > 0. The inequality held at the grant of i. So
//     the tokens that remain from that instant, the units of i and of later leases, and the credits
//     due to leases before i were at most burst − rate·A(i). Since then only refill has been added,
//     at most rate·(g − g(i)). So T + Σ c(j) ≤ burst − rate·A(i) + rate·(g − g(i)) − rate·max(g −
//     g(i), d − d(i)). That is at most burst − rate·A, because d − d(i) = g − g(i) + A − A(i).
//  2. For an instant s, let g be the oldest grant whose units can still be used, so s − g ≤ A. At
//     g, the tokens, all usable units and the credits due were together at most burst − rate·A. At
//     most rate·(s − g) has been added since, so they are at most burst. Every unit used in a span
//     that starts at s either was among them or is refilled during the span.
//
// The refill of a lease is rounded against the caller, and a clip forfeits the elapsed part of a
// tick, as [Limit.drain] does.

// unclipped is the result of leaseRoom for a limit that needs no clip.
const unclipped = int64(Never)

// leaseRoom returns the greatest number of units that a counter can lease at the given age, 0 for
// none.
func (l *Limit) leaseRoom(age Micros) int64 {
	if age == 0 || l.algorithm != TokenBucket {
		return unclipped
	}
	return floorDiv(l.burst*l.unit-l.refillIn(age), l.unit)
}

// Limit.lease prepares the counter for the charge of a lease. The method returns the number of
// parts that a token bucket lacks because of the clip.
func (l *Limit) lease(s *Slot, age Micros) (clip int64) {
	s.State.Leased = max(s.State.Leased, s.now+age)
	if l.algorithm != TokenBucket {
		return 0
	}
	clip = l.refillIn(age)
	if s.State.Used < clip+l.refill {
		s.State.At = s.now
	}
	s.State.Used = max(s.State.Used, clip)
	return clip
}

// leasedUntil returns the end of the last lease, given the recorded instant. No lease is longer
// than a window, so a clock that was ahead must have recorded any later instant.
func (l *Limit) leasedUntil(until, now Micros) Micros {
	if until <= now {
		return 0
	}
	return min(until, now+l.window)
}

// refillIn returns the greatest number of parts that a bucket refills in a span of the given
// length. The span is at most a window or the bucket's fill time, so the product fits.
func (l *Limit) refillIn(span Micros) int64 {
	return ceilDiv(int64(span), int64(l.tick)) * l.refill
}

// LeasableWindowMin is the shortest window whose units may be leased. A node leases its demand for
// at most a fifth of a window. In a shorter window that demand is so small that a lease costs as
// much as deciding each request.
const LeasableWindowMin = Second

// Leasable reports whether units of the limit may be leased. A sliding log leases none, because it
// must record the instant at which each unit is used, which is unknown for a leased unit.
func (l *Limit) Leasable() bool {
	return l.algorithm != 0 && l.algorithm != SlidingLog && (l.calendar != 0 || l.window >= LeasableWindowMin)
}

// LeasableWhen reports whether units of the limit may be leased, given whether the rule settles.
// The units of a token bucket are never leased under a rule that settles.
func (l *Limit) LeasableWhen(settles bool) bool {
	return l.Leasable() && !(settles && l.algorithm == TokenBucket)
}
