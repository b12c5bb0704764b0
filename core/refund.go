// SPDX-License-Identifier: Apache-2.0

package core

// What a charge of a token bucket still lacks. A bucket that is full takes no more, so what flows in beside a charge that
// is given back later may be lost without it: then the charge did no harm any more, and giving all of it back would make
// tokens. Let m be what was missing at any instant since the charge of n, and m′ what would have been without it. The two
// differ by n at first, and come closer only where m′ is 0 and m is not, so that at any later instant
//
//	m − m′ = min(n, the least that m has been since)
//
// What is missing is least just before something is charged, or now: those instants are the dips. With what a refund
// restores taken off the dips after its charge, they are those of the bucket that never had it, and the next refund may
// be worked out from them likewise. So the sum of what charges before a dip are given back after it is at most the dip:
// at every dip, and so in every span, the bucket keeps its promise for what was really used.
//
//   - Before a lease's charge a bucket lacks what its age brings (see [Limit.lease]), with or without the charge that may
//     come back: the dip is what is missing beyond that. Charges of that very instant lie before it.
//   - Where a part of a tick has passed the dip is a tick's refill less, as that tick would come on top of a bucket taken
//     just before (see [Limit.drain]).
//   - A dip that a later one is below says nothing; nor does one as old as a bucket takes to fill. Of more than DipsMax
//     the two that are nearest to each other become one, the lower one at the later instant: that errs against the client.
//   - A full bucket has none. A charge before it that may come back finds no dip as late as itself, or the first one after
//     it, which is of nothing, and gets nothing.
//
// Only buckets whose charges may come back keep dips: those asked with [Check.Refundable], from then until they are full.

// DipsMax is how many dips a bucket keeps. What becomes one restores too little at first; that leaves more missing, and then
// it is enough. A client that asks for twenty times its rate with half a burst of requests open, all of which are refunded,
// is refused 2 in 100 with eight dips, and a third with four.
const DipsMax = 8

// Dip says that a bucket lacked no more than so many parts, at an instant. The zero Dip is none.
type Dip struct {
	At      Micros
	Missing int64
}

// dips reports whether charges of the bucket may come back.
func (s *State) dips() bool { return s.Dips[0].At != 0 }

// dip remembers what is missing now, before a charge, beyond what would be missing in any case.
func (l *Limit) dip(s *Slot, beyond int64) {
	missing, at := s.State.Used-beyond, s.now
	if s.State.At != s.now {
		missing -= l.refill
	}
	if beyond > 0 {
		at++ // charges of this instant lie before
	}
	var kept [DipsMax + 1]Dip
	n := 0
	if !s.State.dips() { // so it was full since whatever may come back of before, be it before charges that may not
		kept[0], n = Dip{At: s.now}, 1
	}
	for _, d := range s.State.Dips {
		if d.At == 0 {
			break
		}
		at = max(at, d.At)
		if d.Missing < missing && s.now-d.At < l.fill {
			for n > 0 && kept[n-1].Missing >= d.Missing { // a refund has lowered this one
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

// lacks returns the parts that a charge still lacks at most.
func (s *Slot) lacks(receipt Micros) int64 {
	missing, known := s.State.Used, false
	for _, d := range s.State.Dips {
		known = known || d.At >= receipt && d.At != 0
		if d.At > receipt {
			missing = min(missing, d.Missing)
		}
	}
	if !known { // it was full since
		return 0
	}
	return missing
}

// restore gives parts back that a charge lacks.
func (s *Slot) restore(receipt Micros, parts int64) {
	s.State.Used -= parts
	for i := range s.State.Dips {
		if d := &s.State.Dips[i]; d.At > receipt {
			d.Missing -= parts
		}
	}
}

// convertDips restates dips in this limit's parts, rounding against the client.
func (l *Limit) convertDips(s *State) {
	for i := range s.Dips {
		if d := &s.Dips[i]; d.At != 0 {
			d.Missing = min((l.burst+l.count)*l.unit, mulDiv(d.Missing, l.unit, s.Aux))
		}
	}
}

// rewindDips takes dips of the future to now.
func (s *Slot) rewindDips() {
	for i := range s.State.Dips {
		if d := &s.State.Dips[i]; d.At > s.now {
			d.At = s.now
		}
	}
}
