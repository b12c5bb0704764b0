// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/big"

	"github.com/penstock/penstock/core"
)

// oracle remembers every charge and works each decision out from what the algorithms promise, by going through all of
// them again. It carries nothing from one decision to the next. Its clock only goes forward and its limits stay: what
// happens otherwise is a rule of its own, not something that follows from the promises.
type oracle struct {
	history   map[string][]event
	calendars map[string]*calendar // of the counters in calendar windows
	records   map[string]*record   // of the penalties
}

func newOracle() *oracle {
	return &oracle{history: map[string][]event{}, calendars: map[string]*calendar{}, records: map[string]*record{}}
}

// period returns the start and the end of the aligned or calendar window that holds an instant.
func (o *oracle) period(key string, l *core.Limit, at core.Micros) (from, until core.Micros) {
	if c := o.calendars[key]; c != nil {
		return c.boundary(at, 0), c.boundary(at, 1)
	}
	from = at - at%l.Window()
	return from, from + l.Window()
}

// event is units charged at an instant, or, for a token bucket, given back (negative).
type event struct {
	at    core.Micros
	units int64
	age   core.Micros // of a lease; otherwise 0
}

// room returns the units that are available at an instant, negative in debt.
func (o *oracle) room(key string, l *core.Limit, at core.Micros) int64 {
	events, window := o.history[key], l.Window()
	switch l.Algorithm() {
	case core.FixedWindow:
		from, until := o.period(key, l, at)
		return l.Count() - charged(events, from, until)
	case core.SlidingWindow:
		begin := at - at%window
		previous := big.NewInt(charged(events, begin-window, begin))
		previous.Mul(previous, big.NewInt(int64(window-(at-begin))))
		previous.Div(previous, big.NewInt(int64(window)))
		return l.Count() - previous.Int64() - charged(events, begin, begin+window)
	case core.SlidingLog:
		return l.Count() - charged(events, at-window+1, at+1)
	default:
		room := new(big.Rat).Sub(big.NewRat(l.Capacity(), 1), missing(events, l, at))
		return floor(room)
	}
}

// charged returns the units charged from an instant on and before another.
func charged(events []event, from, until core.Micros) (units int64) {
	for _, e := range events {
		if e.at >= from && e.at < until {
			units += e.units
		}
	}
	return units
}

// perTick returns the tokens that a tick brings: count per window, as near as the limit's arithmetic comes to it.
func perTick(l *core.Limit) (*big.Rat, core.Micros) {
	unit, refill, tick := l.Arithmetic()
	return big.NewRat(refill, unit), tick
}

// missing returns the tokens that a bucket lacks at an instant. Ticks are counted from when it was last full, or lacked
// less than a tick brings when something was charged.
func missing(events []event, l *core.Limit, at core.Micros) *big.Rat {
	rate, tick := perTick(l)
	lacks, since := new(big.Rat), core.Micros(0)
	refill := func(until core.Micros) {
		ticks := int64((until - since) / tick)
		if lacks.Sign() > 0 {
			lacks.Sub(lacks, new(big.Rat).Mul(rate, big.NewRat(ticks, 1)))
		}
		if since += core.Micros(ticks) * tick; lacks.Sign() <= 0 {
			lacks, since = new(big.Rat), until
		}
	}
	for _, e := range events {
		refill(e.at)
		if e.age > 0 { // the bucket must lack what the lease's time brings
			clip := brings(l, e.age)
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

// fill returns how long an empty bucket takes.
func fill(l *core.Limit) core.Micros {
	rate, tick := perTick(l)
	ticks := new(big.Rat).Quo(big.NewRat(l.Capacity(), 1), rate)
	return core.Micros(ceil(ticks)) * tick
}

func ceil(r *big.Rat) int64 {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

// granted works out what each check of a counter gets at an instant, whether it is refused, and whether the call is
// admitted, and remembers it.
func (o *oracle) granted(at core.Micros, checks []core.Check) (granted []int64, refused []bool, admitted bool) {
	granted, refused = make([]int64, len(checks)), make([]bool, len(checks))
	admitted = !o.penalized(at, checks)
	for i := range checks {
		c := &checks[i]
		if c.Penalty != nil {
			continue
		}
		room := o.room(string(c.Key), c.Limit, at)
		switch c.Op {
		case core.OpTake, core.OpLook:
			refused[i] = c.Cost > 0 && c.Cost > room
			if c.Op == core.OpTake && !refused[i] {
				granted[i] = c.Cost
			}
		case core.OpUpTo:
			if refused[i] = room < c.Min; !refused[i] {
				granted[i] = o.upTo(c, room)
			}
		}
		admitted = admitted && (!refused[i] || c.Shadow || c.Op == core.OpLook)
	}
	for i := range checks {
		c := &checks[i]
		if c.Penalty != nil {
			continue
		}
		switch key := string(c.Key); c.Op {
		case core.OpReset:
			granted[i] = c.Limit.Capacity() - o.room(key, c.Limit, at)
			delete(o.history, key)
			continue
		case core.OpForce:
			granted[i] = min(c.Cost, max(0, o.room(key, c.Limit, at)+c.Limit.Count()))
		case core.OpGiveBack:
			granted[i] = o.giveBack(key, c, at)
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

// giveBack takes units off the charges that the receipt names, if they still count.
func (o *oracle) giveBack(key string, c *core.Check, at core.Micros) (granted int64) {
	from, until, window := c.Receipt, c.Receipt+1, c.Limit.Window()
	begin, _ := o.period(key, c.Limit, at)
	alive := c.Receipt > at-window
	switch c.Limit.Algorithm() {
	case core.TokenBucket:
		if c.Receipt <= 0 || at-c.Receipt >= fill(c.Limit) {
			return 0
		}
		left := leftOf(o.history[key], c, at)
		if granted = min(left, ceil(missing(o.history[key], c.Limit, at))); granted > 0 {
			o.history[key] = append(o.history[key], event{at: at, units: -granted})
		}
		return granted
	case core.FixedWindow:
		until, alive = at+1, c.Receipt == begin
	case core.SlidingWindow:
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
