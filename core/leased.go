// SPDX-License-Identifier: Apache-2.0

package core

// A lease is units that are charged now and used later, within an age that the caller states. What they are given back of
// goes to where it was charged.
//
// A unit of a fixed, sliding or calendar window is used before the end of the window that it was charged in, which is the
// caller's to see to: what is used in a window is then at any time at most what is charged in it, and a sliding estimate
// of the one at most that of the other. These counters only remember until when units may be out.
//
// A token bucket promises at most burst + rate·T in any span T, and a leased unit may be used up to its age A after it
// left the bucket, in which time the bucket refills. So a lease is granted only what a bucket has that lacks rate·A, and
// one that lacks less is brought there (the clip); and n units of a lease that come back are credited but for what is
// refilled from its grant until now, or until A before the last instant at which units of any lease may be used, if that is
// later: max(0, n − rate·(max(now, Leased − A) − Receipt)). Ages may differ: those who are far from the store need long ones.
//
// A charge that is used at once needs no clip, and what of it is not used after all comes back with an Age of 1: it is a
// lease of no time, as units are used before their age has passed. What a settlement gives back, of leased units too, has no
// Age: it restores what the charge still lacks, and the sum of that is no more than a bucket lacks at any grant beyond its
// clip (see [Dip]). So it may be added to T in what follows.
//
// Proof. Let A be the age less a microsecond: what is used before the one has passed is used within the other. Say that at
// a grant at g the bucket has T tokens after the clip and before the charge, that d = g + A is when the lease ends, and that
// every older lease j, granted at g(j) for A(j), has x(j) units left. What j is credited at g or later is at most
// c(j) = max(0, x(j) − rate·max(g − g(j), d − d(j))), as Leased is at least d until d.
//
//  1. At every grant T + Σ c(j) ≤ burst − rate·A. If no c(j) is positive, the clip says so. Else let i be the oldest lease
//     whose is. At its own grant this line held, so what is there since of tokens, of units of i and later ones, and of
//     credits to come of those before it, was at most burst − rate·A(i), and has gained nothing but refill: it is at most
//     that and rate·(g − g(i)). So T + Σ c(j) ≤ burst − rate·A(i) + rate·(g − g(i)) − rate·max(g − g(i), d − d(i)), and
//     that is at most burst − rate·A, as d − d(i) = g − g(i) + A − A(i).
//  2. At an instant s let g be the oldest grant of which units may still be used: s − g ≤ A. Tokens and all units that may
//     be used were at g, with the credits to come, at most burst − rate·A, and have gained at most rate·(s − g) since: they
//     are at most burst. Whatever is used in a span from s on was that, or is refilled in the span.
//
// Refill rounds against the caller, and what has passed of a tick is forfeited at a clip, as at [Limit.drain].

// unclipped is the room for a lease where nothing is clipped.
const unclipped = int64(Never)

// leaseRoom returns how many units a counter can have at most for leases of the age, 0 for none.
func (l *Limit) leaseRoom(age Micros) int64 {
	if age == 0 || l.algorithm != TokenBucket {
		return unclipped
	}
	return floorDiv(l.burst*l.unit-l.brings(age), l.unit)
}

// lease makes the counter ready for the charge of a lease, and returns the parts that a token bucket lacks then in any case.
func (l *Limit) lease(s *Slot, age Micros) (clip int64) {
	s.State.Leased = max(s.State.Leased, s.now+age)
	if l.algorithm != TokenBucket {
		return 0
	}
	clip = l.brings(age)
	if s.State.Used < clip+l.refill {
		s.State.At = s.now
	}
	s.State.Used = max(s.State.Used, clip)
	return clip
}

// leased returns until when units are out that were until the given instant when they were charged. Nothing is out for
// longer than a window: more is left of a clock that was ahead.
func (l *Limit) leased(until, now Micros) Micros {
	if until <= now {
		return 0
	}
	return min(until, now+l.window)
}

// brings returns the parts that refill a token bucket in any span of that length at most. The span is no longer than a
// window, or the bucket's time to fill, so it fits.
func (l *Limit) brings(span Micros) int64 {
	return ceilDiv(int64(span), int64(l.tick)) * l.refill
}
