// SPDX-License-Identifier: Apache-2.0

package counter

// A refund to a token bucket restores only what the bucket still lacks because of the charge.
// Without the charge, the bucket might have been full in the meantime and lost some refill. The
// part of the charge that equals the lost refill no longer has an effect, and refunding it would
// create tokens. Let m be the parts missing at an instant since the charge of n, and m′ the parts
// that would be missing without the charge. The two differ by n at first. Their difference shrinks
// only while m′ is 0 and m is not. So at any later instant
//
//	m − m′ = min(n, the minimum of m since the charge)
//
// The minima of m are just before each charge, and now. A dip is such an instant with its m. A
// refund lowers the dips after its charge by the parts it restores. The lowered dips are those of a
// bucket without the refunded parts, so the next refund is computed from them by the same formula.
// So the refunds that are made after a dip, of charges made before it, add up to at most the dip.
// At every dip, and therefore in every span, the bucket keeps its guarantee for the units that were
// actually used.
//
//   - Before the charge of a lease, a bucket lacks the refill of its age (see [Limit.lease]), with
//     or without the refundable charge. The dip is what the bucket lacks beyond that. Charges at
//     the same instant count as made before the dip.
//   - If part of a tick has elapsed, the dip is reduced by the refill of one tick, because the end
//     of that tick would refill a bucket that was charged just before (see [Limit.drain]).
//   - A dip that is higher than a later dip is not needed, nor is a dip as old as the bucket's fill
//     time. If there are more than DipsMax dips, the closest two are merged into one with the lower
//     value and the later instant, which rounds against the client.
//   - A full bucket has no dips. For a refundable charge made before the bucket was full, there is
//     no dip at or after its instant, or there is a dip of 0, so nothing is refunded.
//
// A bucket keeps dips only from its first charge with [Check.Refundable] until it is full.

// DipsMax is the number of dips that a bucket keeps. After a merge of two dips a refund restores
// too little at first. The bucket then lacks more parts, so later refunds restore enough. Example:
// a client sends requests at twenty times its rate, with half a burst of requests in flight, and
// all are refunded. With eight dips, 2 % of its requests are denied; with four dips, a third.
const DipsMax = 8

// Dip records an instant and the number of parts that the bucket lacked at that instant. The zero
// Dip means none.
type Dip struct {
	At      Micros
	Missing int64
}

// hasDips reports whether the bucket has any dips, that is, refundable charges.
func (s *State) hasDips() bool { return s.Dips[0].At != 0 }

// recordDip records the number of parts missing before a charge that is about to be made. The
// argument beyond, the number of parts that are missing because of a clip, is subtracted.
func (l *Limit) recordDip(s *Slot, beyond int64) {
	missing, at := s.State.Used-beyond, s.now
	if s.State.At != s.now {
		missing -= l.refill
	}
	if beyond > 0 {
		at++ // charges at this instant count as made before the dip
	}
	var kept [DipsMax + 1]Dip
	n := 0
	if !s.State.hasDips() { // a dip of 0: the bucket was full after any earlier refundable charge
		kept[0], n = Dip{At: s.now}, 1
	}
	for _, d := range s.State.Dips {
		if d.At == 0 {
			break
		}
		at = max(at, d.At)
		if d.Missing < missing && s.now-d.At < l.fill {
			for n > 0 && kept[n-1].Missing >= d.Missing { // a refund has lowered d, so an earlier dip that is no lower is not needed
				n--
			}
			kept[n] = d
			n++
		}
	}
	if n == 0 || kept[n-1].At != at {
		kept[n] = Dip{At: at, Missing: missing}
		n++
	}
	if n > DipsMax {
		nearest := 1
		for i := 2; i < n; i++ {
			if kept[i].Missing-kept[i-1].Missing < kept[nearest].Missing-kept[nearest-1].Missing {
				nearest = i
			}
		}
		kept[nearest].Missing = kept[nearest-1].Missing
		copy(kept[nearest-1:], kept[nearest:])
		n--
	}
	s.State.Dips = [DipsMax]Dip{}
	copy(s.State.Dips[:], kept[:n])
}

// missingParts returns the greatest number of parts that the bucket may still lack because of the
// charge.
func (s *Slot) missingParts(receipt Micros) int64 {
	missing, known := s.State.Used, false
	for _, d := range s.State.Dips {
		known = known || d.At >= receipt && d.At != 0
		if d.At > receipt {
			missing = min(missing, d.Missing)
		}
	}
	if !known { // the bucket has been full since the charge
		return 0
	}
	return missing
}

// refundParts credits parts of a charge to the bucket.
func (s *Slot) refundParts(receipt Micros, parts int64) {
	s.State.Used -= parts
	for i := range s.State.Dips {
		if d := &s.State.Dips[i]; d.At > receipt {
			d.Missing -= parts
		}
	}
}

// convertDips restates dips in this limit's unit, rounding against the client.
func (l *Limit) convertDips(s *State) {
	for i := range s.Dips {
		if d := &s.Dips[i]; d.At != 0 {
			d.Missing = min((l.burst+l.count)*l.unit, mulDiv(d.Missing, l.unit, s.Aux))
		}
	}
}

// rewindDips moves dips in the future to now.
func (s *Slot) rewindDips() {
	for i := range s.State.Dips {
		if d := &s.State.Dips[i]; d.At > s.now {
			d.At = s.now
		}
	}
}
