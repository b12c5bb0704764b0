// SPDX-License-Identifier: Apache-2.0

package filter

import "github.com/penstock/penstock/core"

// What is decided without the bridge. A limit holds there too: what was refused a moment ago stays refused, and what on_error lets
// pass is counted in Envoy's shared data, which all workers of the process have in common, and ends at the limit. Nothing of this
// costs anything while the bridge answers.

// unasked decides a request that the bridge was not asked about, or about which it has said nothing.
//
//go:noinline
func (s *Stream) unasked(why Counter) Action {
	f, a := s.f, s.asking
	f.host.Count(why)
	switch {
	case s.remembers():
		return s.remembered(f.elapsed())
	case why == CounterBusy || why == CounterFull:
		return s.decide(a.plan.Overload())
	}
	d := a.degrade()
	if !d.Refused() && f.bound(a) {
		f.host.Count(CounterSpent)
		return s.concluded()
	}
	return s.decide(d)
}

// degrade decides by on_error. Whose credential cannot be verified may be anybody.
func (a *asking) degrade() core.Decision {
	if a.unsure && a.policy.anybody != nil {
		a.plan.Reset()
		a.plan.Add(a.policy.anybody, &a.attrs.view)
	}
	return a.plan.Degrade()
}

// full reports whether as many requests wait as may, or hold as many bytes.
func (f *Filter) full(a *asking) bool {
	c := &f.calls
	return len(c.waiting)+f.gates.lined >= waitingMax || c.held-a.held+a.attrs.bytes > heldBytesMax
}

// crowdedOut refuses a request, since too many wait for its counter.
//
//go:noinline
func (s *Stream) crowdedOut() Action {
	r := &s.asking.plan.Results()[s.asking.narrow]
	s.f.host.Count(CounterFull)
	r.Local, r.Refused, r.Wait = true, true, core.Second
	return s.concluded()
}

// What was let pass without the bridge is counted in a fixed number of records, as Envoy's shared data knows no deletion: 65,536, with
// some 10 MB in all. A counter has the record of its hash. Two counters that have the same one have the limit of either together,
// until the time of the first is over.
const (
	recordsMax  = 1 << 16
	recordBytes = 16 // until when it is in force, and the units
	recordTries = 64 // workers write at the same time; whoever cannot is refused
)

// bound counts a request that on_error lets pass, and reports whether it exceeds a limit; then its results say so, and it is not
// counted.
func (f *Filter) bound(a *asking) (exceeded bool) {
	checks, results := a.plan.Checks(), a.plan.Results()
	now := f.host.Now()
	for i := range checks {
		results[i] = core.Result{At: now, Local: true}
	}
	for i := range checks {
		if wait := f.spend(&checks[i], now, 1); wait > 0 {
			results[i].Refused, results[i].Wait = true, wait
			for i--; i >= 0; i-- {
				f.spend(&checks[i], now, -1)
			}
			return true
		}
	}
	return false
}

// spend counts what a check costs, or with a sign of -1 takes that back. It returns how long until there is room; 0 if there is.
func (f *Filter) spend(c *core.Check, now core.Micros, sign int64) (wait core.Micros) {
	if c.Limit == nil || c.Shadow || c.Op != core.OpTake {
		return 0
	}
	cost, capacity := c.Cost, c.Limit.Capacity()
	if cost > capacity {
		return core.Never
	}
	if c.OnError == core.OnErrorLocal {
		cost = min(cost*max(1, f.calls.nodes), capacity)
	}
	h := hash(fnvOffset, string(c.Key))
	record := uint32(h>>32^h) % recordsMax
	for range recordTries {
		value, cas := f.host.Shared(record)
		if len(value) != recordBytes {
			value = make([]byte, recordBytes)
		}
		ends, used := core.Micros(number(value)), int64(number(value[8:]))
		if !ahead(ends, now, core.FillMax) {
			ends, used = ending(c, now), 0
		}
		if used += sign * cost; sign > 0 && used > capacity {
			return max(1, ends-now)
		}
		setNumber(value, uint64(ends))
		setNumber(value[8:], uint64(max(0, used)))
		if f.host.Share(record, value, cas) {
			return 0
		}
	}
	return core.Second
}

//go:noinline
func number(b []byte) (n uint64) {
	for i := range 8 {
		n |= uint64(b[i]) << (8 * i)
	}
	return n
}

//go:noinline
func setNumber(b []byte, n uint64) {
	for i := range 8 {
		b[i] = byte(n >> (8 * i))
	}
}

// ending returns when the units that are used now are there again: at the end of an aligned window, and otherwise after the time in
// which as many as the limit lets through at once flow in.
func ending(c *core.Check, now core.Micros) core.Micros {
	l := c.Limit
	span := l.Window()
	switch l.Algorithm() {
	case core.FixedWindow, core.SlidingWindow:
		if c.Bounds == nil {
			return now - now%span + span
		}
		for _, end := range c.Bounds {
			if now < end {
				return end
			}
		}
	case core.TokenBucket:
		span = core.Micros(float64(span) * float64(l.Capacity()) / float64(l.Count()))
	}
	return now + span
}
