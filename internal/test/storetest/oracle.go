// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/big"

	corecounter "github.com/penstock/penstock/core/counter"
)

// oracle stores every charge. It computes each decision from the promises of the algorithms, by
// examining all charges again, and keeps no other state. The clock must only go forward and limits
// must not change, because the promises do not determine the answers in other cases.
type oracle struct {
	history   map[string][]event
	calendars map[string]*calendar // the calendars of counters that have calendar windows
	records   map[string]*record   // the records of penalties
}

func newOracle() *oracle {
	return &oracle{history: map[string][]event{}, calendars: map[string]*calendar{}, records: map[string]*record{}}
}

// period returns the start and the end of the window that contains an instant. The window is a
// calendar window, or aligned to the epoch.
func (o *oracle) period(key string, l *corecounter.Limit, at corecounter.Micros) (from, until corecounter.Micros) {
	if c := o.calendars[key]; c != nil {
		return c.boundary(at, 0), c.boundary(at, 1)
	}
	from = at - at%l.Window()
	return from, from + l.Window()
}

// event records units that were charged at an instant. The number is negative if they were refunded
// to a token bucket.
type event struct {
	at    corecounter.Micros
	units int64
	age   corecounter.Micros // the age of the lease; 0 if the units were not leased
}

// oracle.room returns how many units of a limit are available at an instant. The number is negative
// if the counter is in debt.
func (o *oracle) room(key string, l *corecounter.Limit, at corecounter.Micros) int64 {
	events, window := o.history[key], l.Window()
	switch l.Algorithm() {
	case corecounter.FixedWindow:
		from, until := o.period(key, l, at)
		return l.Count() - sumCharged(events, from, until)
	case corecounter.SlidingWindow:
		begin := at - at%window
		previous := big.NewInt(sumCharged(events, begin-window, begin))
		previous.Mul(previous, big.NewInt(int64(window-(at-begin))))
		previous.Div(previous, big.NewInt(int64(window)))
		return l.Count() - previous.Int64() - sumCharged(events, begin, begin+window)
	case corecounter.SlidingLog:
		return l.Count() - sumCharged(events, at-window+1, at+1)
	default:
		room := new(big.Rat).Sub(big.NewRat(l.Capacity(), 1), missingTokens(events, l, at))
		return floor(room)
	}
}

// sumCharged returns how many units the events charged in the span that begins at the instant from
// and ends just before the instant until.
func sumCharged(events []event, from, until corecounter.Micros) (units int64) {
	for _, e := range events {
		if e.at >= from && e.at < until {
			units += e.units
		}
	}
	return units
}

// tokensPerTick returns the tokens that a tick adds, and the length of a tick. Their rate is the
// count per window, as precisely as the limit's arithmetic allows.
func tokensPerTick(l *corecounter.Limit) (*big.Rat, corecounter.Micros) {
	unit, refill, tick := l.Arithmetic()
	return big.NewRat(refill, unit), tick
}

// missingTokens returns the tokens that a bucket lacks at an instant. Ticks are counted from the
// last charge at which the bucket was full, or lacked less than the tokens of one tick.
func missingTokens(events []event, l *corecounter.Limit, at corecounter.Micros) *big.Rat {
	rate, tick := tokensPerTick(l)
	lacks, since := new(big.Rat), corecounter.Micros(0)
	refill := func(until corecounter.Micros) {
		ticks := int64((until - since) / tick)
		if lacks.Sign() > 0 {
			lacks.Sub(lacks, new(big.Rat).Mul(rate, big.NewRat(ticks, 1)))
		}
		if since += corecounter.Micros(ticks) * tick; lacks.Sign() <= 0 {
			lacks, since = new(big.Rat), until
		}
	}
	for _, e := range events {
		refill(e.at)
		if e.age > 0 { // after a lease, the bucket lacks at least what it refills during the lease
			clip := tokensIn(l, e.age)
			if lacks.Cmp(new(big.Rat).Add(clip, rate)) < 0 {
				since = e.at
			}
			if lacks.Cmp(clip) < 0 {
				lacks.Set(clip)
			}
		}
		if e.units > 0 && lacks.Cmp(rate) < 0 {
			since = e.at
		}
		if lacks.Add(lacks, big.NewRat(e.units, 1)); lacks.Sign() < 0 {
			lacks = new(big.Rat)
		}
	}
	refill(at)
	return lacks
}

// fill returns how long an empty bucket takes to become full.
func fill(l *corecounter.Limit) corecounter.Micros {
	rate, tick := tokensPerTick(l)
	ticks := new(big.Rat).Quo(big.NewRat(l.Capacity(), 1), rate)
	return corecounter.Micros(ceil(ticks)) * tick
}

func ceil(r *big.Rat) int64 {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

// oracle.granted computes the decision of a call at an instant, and records the charges. It returns
// how many units each check of a counter is granted, whether the check is denied, and whether the
// call is admitted.
func (o *oracle) granted(at corecounter.Micros, checks []corecounter.Check) (granted []int64, refused []bool, admitted bool) {
	granted, refused = make([]int64, len(checks)), make([]bool, len(checks))
	admitted = !o.penalized(at, checks)
	for i := range checks {
		c := &checks[i]
		if c.Penalty != nil {
			continue
		}
		room := o.room(string(c.Key), c.Limit, at)
		switch c.Op {
		case corecounter.OpTake, corecounter.OpLook:
			refused[i] = c.Cost > 0 && c.Cost > room
			if c.Op == corecounter.OpTake && !refused[i] {
				granted[i] = c.Cost
			}
		case corecounter.OpUpTo:
			if refused[i] = room < c.Min; !refused[i] {
				granted[i] = o.grantUpTo(c, room)
			}
		}
		admitted = admitted && (!refused[i] || c.Shadow || c.Op == corecounter.OpLook)
	}
	for i := range checks {
		c := &checks[i]
		if c.Penalty != nil {
			continue
		}
		switch key := string(c.Key); c.Op {
		case corecounter.OpReset:
			granted[i] = c.Limit.Capacity() - o.room(key, c.Limit, at)
			delete(o.history, key)
			continue
		case corecounter.OpForce:
			granted[i] = min(c.Cost, max(0, o.room(key, c.Limit, at)+c.Limit.Count()))
		case corecounter.OpRefund:
			granted[i] = o.refund(key, c, at)
			continue
		default:
			if !admitted {
				granted[i] = 0
			}
		}
		if granted[i] > 0 {
			e := event{at: at, units: granted[i]}
			if granted[i] > c.Cost {
				e.age = c.Age
			}
			o.history[string(c.Key)] = append(o.history[string(c.Key)], e)
		}
	}
	return granted, refused, admitted
}

// oracle.refund refunds units of the charges that the check's receipt names, as far as these
// charges still count.
func (o *oracle) refund(key string, c *corecounter.Check, at corecounter.Micros) (granted int64) {
	from, until, window := c.Receipt, c.Receipt+1, c.Limit.Window()
	begin, _ := o.period(key, c.Limit, at)
	alive := c.Receipt > at-window
	switch c.Limit.Algorithm() {
	case corecounter.TokenBucket:
		if c.Receipt <= 0 || at-c.Receipt >= fill(c.Limit) {
			return 0
		}
		left := restorableUnits(o.history[key], c, at)
		if granted = min(left, ceil(missingTokens(o.history[key], c.Limit, at))); granted > 0 {
			o.history[key] = append(o.history[key], event{at: at, units: -granted})
		}
		return granted
	case corecounter.FixedWindow:
		until, alive = at+1, c.Receipt == begin
	case corecounter.SlidingWindow:
		until, alive = c.Receipt+window, c.Receipt == begin || c.Receipt == begin-window
	}
	for i := range o.history[key] {
		if e := &o.history[key][i]; alive && e.at >= from && e.at < until {
			units := min(e.units, c.Cost-granted)
			e.units -= units
			granted += units
		}
	}
	return granted
}
