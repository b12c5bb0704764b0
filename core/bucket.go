// SPDX-License-Identifier: Apache-2.0

package core

// A token bucket is kept as what is missing from a full one, in parts of a token, so that a counter never written is a
// full bucket and raising the burst needs no rewriting.

func (l *Limit) rollBucket(s *Slot) (store bool) {
	if s.State.At == 0 {
		s.State = State{At: s.now, Aux: l.unit}
		return false
	}
	l.convert(s)
	switch {
	case s.State.At > s.now+l.window: // the clock went back further than a window
		s.State.At = s.now
		s.rewindDips()
		return true
	case s.State.At > s.now:
		s.now = s.State.At
	}
	elapsed := int64((s.now - s.State.At) / l.tick)
	if elapsed >= ceilDiv(s.State.Used, l.refill) {
		s.State.At, s.State.Used = s.now, 0
		if s.State.dips() {
			s.State.Dips = [DipsMax]Dip{}
		}
		return false
	}
	s.State.At += Micros(elapsed) * l.tick
	s.State.Used -= elapsed * l.refill
	return false
}

// convert restates what is missing in this limit's parts, rounding against the client, and keeps a debt within one
// window: who came from a higher limit is not locked out for as long as that one's burst takes to flow in here.
func (l *Limit) convert(s *Slot) {
	deepest := (l.burst + l.count) * l.unit
	if s.State.Aux != l.unit {
		s.State.Used = mulDivUp(s.State.Used, l.unit, s.State.Aux, deepest+1)
		l.convertDips(&s.State)
		s.State.Aux = l.unit
	}
	s.beyond = s.State.Used > deepest
	s.State.Used = min(s.State.Used, deepest)
}

func (l *Limit) bucketHas(s *Slot, cost int64) Micros {
	return l.bucketAt(s, (l.burst-cost)*l.unit)
}

func (l *Limit) bucketFull(s *Slot) Micros { return l.bucketAt(s, 0) }

func (l *Limit) bucketNext(s *Slot, tokens int64) Micros {
	return l.bucketAt(s, max(0, l.burst-max(0, tokens)-1)*l.unit)
}

// bucketAt returns when no more than missing parts are missing: 0 if that is so now.
func (l *Limit) bucketAt(s *Slot, missing int64) Micros {
	if s.State.Used <= missing {
		return 0
	}
	return s.State.At + Micros(ceilDiv(s.State.Used-missing, l.refill))*l.tick
}

// drain takes n tokens out. A bucket that lacks less than the next tick brings would fill before it: what has passed of
// that tick is forfeited, or the tick would come on top of a full bucket taken just before. beyond is what the bucket
// lacks in any case: what the age of a lease brings.
func (l *Limit) drain(s *Slot, n, beyond int64, refundable bool) Micros {
	if s.State.Used < l.refill {
		s.State.At = s.now
	}
	if refundable || s.State.dips() {
		l.dip(s, beyond)
	}
	s.State.Used += n * l.unit
	return s.now
}

// refund gives n of a charge's tokens back, unless it is so old that the bucket has filled since; of a lease, which has an
// age, only those beyond what is refilled in the meantime, and of a charge that is refundable only what it still lacks.
func (l *Limit) refund(s *Slot, c *Check) int64 {
	n := c.Cost
	if c.Age > 0 {
		meanwhile := max(s.now, s.State.Leased-c.Age) - c.Receipt
		if meanwhile >= l.fill {
			return 0
		}
		n = max(0, n-ceilDiv(l.brings(max(0, meanwhile)), l.unit))
	}
	if s.now-c.Receipt >= l.fill {
		return 0
	}
	n = min(n, ceilDiv(s.State.Used, l.unit)) // so that its parts fit
	if c.Refundable && c.Age == 0 {
		parts := min(n*l.unit, s.lacks(c.Receipt))
		s.restore(c.Receipt, parts)
		return ceilDiv(parts, l.unit)
	}
	s.State.Used = max(0, s.State.Used-n*l.unit)
	return n
}
