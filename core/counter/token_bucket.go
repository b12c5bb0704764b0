// SPDX-License-Identifier: Apache-2.0

package counter

// A token bucket is stored as the number of parts missing from a full bucket. So a counter that
// does not exist is a full bucket, and increasing the burst does not require rewriting counters.

func (l *Limit) rollBucket(s *Slot) (store bool) {
	if s.State.At == 0 {
		s.State = State{At: s.now, Aux: l.unit}
		return false
	}
	l.convert(s)
	switch {
	case s.State.At > s.now+l.window: // the clock went back by more than a window
		s.State.At = s.now
		s.rewindDips()
		return true
	case s.State.At > s.now:
		s.now = s.State.At
	}
	elapsed := int64((s.now - s.State.At) / l.tick)
	if elapsed >= ceilDiv(s.State.Used, l.refill) {
		s.State.At, s.State.Used = s.now, 0
		if s.State.hasDips() {
			s.State.Dips = [DipsMax]Dip{}
		}
		return false
	}
	s.State.At += Micros(elapsed) * l.tick
	s.State.Used -= elapsed * l.refill
	return false
}

// Limit.convert restates the missing parts in this limit's unit, rounding against the client. It
// also limits a debt to one window. Otherwise a client whose limit was lowered would have to wait
// for the refill of a debt as large as the higher limit's burst.
func (l *Limit) convert(s *Slot) {
	deepest := (l.burst + l.count) * l.unit
	if s.State.Aux != l.unit {
		s.State.Used = mulDivUp(s.State.Used, l.unit, s.State.Aux, deepest+1)
		l.convertDips(&s.State)
		s.State.Aux = l.unit
	}
	s.beyondLimit = s.State.Used > deepest
	s.State.Used = min(s.State.Used, deepest)
}

func (l *Limit) bucketHas(s *Slot, cost int64) Micros {
	return l.bucketAt(s, (l.burst-cost)*l.unit)
}

func (l *Limit) bucketFull(s *Slot) Micros { return l.bucketAt(s, 0) }

func (l *Limit) bucketNext(s *Slot, tokens int64) Micros {
	return l.bucketAt(s, max(0, l.burst-max(0, tokens)-1)*l.unit)
}

// bucketAt returns the instant from which at most the given number of parts is missing, or 0 if
// that is the case now.
func (l *Limit) bucketAt(s *Slot, missing int64) Micros {
	if s.State.Used <= missing {
		return 0
	}
	return s.State.At + Micros(ceilDiv(s.State.Used-missing, l.refill))*l.tick
}

// Limit.drain takes n tokens out. A bucket that lacks less than the refill of one tick would be
// full before the tick ends. Such a bucket forfeits the elapsed part of the tick, because otherwise
// the end of the tick would refill a bucket that was full just before. The argument beyond is the
// number of parts that the bucket lacks because of a clip.
func (l *Limit) drain(s *Slot, n, beyond int64, refundable bool) Micros {
	if s.State.Used < l.refill {
		s.State.At = s.now
	}
	if refundable || s.State.hasDips() {
		l.recordDip(s, beyond)
	}
	s.State.Used += n * l.unit
	return s.now
}

// Limit.refund restores tokens of a charge, unless the bucket has filled since the charge. For a
// lease, which has an age, it deducts what was refilled in the meantime. For a refundable charge it
// restores only the tokens that the bucket still lacks because of the charge.
func (l *Limit) refund(s *Slot, c *Check) int64 {
	n := c.Cost
	if c.Age > 0 {
		meanwhile := max(s.now, s.State.Leased-c.Age) - c.Receipt
		if meanwhile >= l.fill {
			return 0
		}
		n = max(0, n-ceilDiv(l.refillIn(max(0, meanwhile)), l.unit))
	}
	if s.now-c.Receipt >= l.fill {
		return 0
	}
	n = min(n, ceilDiv(s.State.Used, l.unit)) // this keeps the product within bounds
	if c.Refundable && c.Age == 0 {
		parts := min(n*l.unit, s.missingParts(c.Receipt))
		s.refundParts(c.Receipt, parts)
		return ceilDiv(parts, l.unit)
	}
	s.State.Used = max(0, s.State.Used-n*l.unit)
	return n
}
