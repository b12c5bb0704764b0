// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
	"github.com/penstock/penstock/internal/wire"
)

// part is what is known here of one check of a request.
type part struct {
	held    *held
	units   lease.Held // if it was admitted
	verdict lease.Verdict
}

// aside decides the request here if that can be, and otherwise makes it ready to ask. done says that it is decided.
func (s *Stream) aside() (action Action, done bool) {
	f, a := s.f, s.asking
	a.forget() // of when it came to a line
	refuse, admit := a.plan.Aside()
	if a.refuses = refuse && !a.unsure; !a.refuses {
		return Continue, false
	}
	a.admits = admit && f.leases.reads
	if a.refuses = a.admits || !f.leases.exact; !a.refuses {
		return Continue, false
	}
	if !a.admits && len(f.leases.byKey) == 0 {
		return Continue, false // nothing was refused to anybody: what follows would find that out check by check
	}
	if a.admits && f.stale {
		a.attrs.ask.Known = 0 // so that the bridge says again what the credentials are worth
		return Continue, false
	}
	now := f.elapsed()
	inHand, denied := f.look(now, a, a.admits)
	switch {
	case denied:
		return s.remembered(now), true
	case inHand == len(a.parts):
		return s.fromHand(now), true
	}
	a.putBack(now)
	return Continue, false
}

// look looks at what is known here of each check: it takes what is in hand, or else what was refused a moment ago counts.
func (f *Filter) look(now core.Micros, a *asking, takes bool) (inHand int, denied bool) {
	checks := a.plan.Checks()
	for i := range checks {
		c := &checks[i]
		p := part{held: f.leases.hold(c, takes)}
		switch {
		case p.held == nil:
		case takes:
			p.verdict, p.units = p.held.counter.Take(now, c.Limit, c.Cost)
		case !c.Shadow && p.held.counter.Denies(now, c.Limit, c.Cost):
			p.verdict = lease.Deny
		}
		switch p.verdict {
		case lease.Admit, lease.AdmitAsk:
			inHand++
		case lease.Deny:
			denied = true
		}
		a.parts = append(a.parts, p)
	}
	return inHand, denied
}

// forget forgets what was found.
//
//go:noinline
func (a *asking) forget() {
	clear(a.parts)
	a.parts, a.admits = a.parts[:0], false
}

// remembers reports whether what was refused a moment ago refuses a request that is not decided aside.
//
//go:noinline
func (s *Stream) remembers() (denied bool) {
	f, a := s.f, s.asking
	if !a.alike || a.unsure || len(f.leases.byKey) == 0 {
		return false
	}
	a.forget()
	_, denied = f.look(f.elapsed(), a, false)
	return denied
}

// remembered refuses a request by what was refused a moment ago.
//
//go:noinline
func (s *Stream) remembered(now core.Micros) Action {
	a := s.asking
	a.putBack(now)
	a.tellDenied(now)
	s.f.host.Count(CounterRemembered)
	return s.concluded()
}

// fromHand admits a request of which all units are in hand.
func (s *Stream) fromHand(now core.Micros) Action {
	f, a := s.f, s.asking
	checks, results := a.plan.Checks(), a.plan.Results()
	for i := range a.parts {
		p := &a.parts[i]
		p.held.counter.Answer(now, checks[i].Cost, p.verdict, &results[i])
		if p.verdict == lease.AdmitAsk {
			f.fetch(now, a, i)
		}
	}
	f.host.Count(CounterLeased)
	return s.concluded()
}

// putBack undoes what was taken and waited for of some of the checks.
func (a *asking) putBack(now core.Micros) {
	checks := a.plan.Checks()
	for i := range a.parts {
		switch p := &a.parts[i]; p.verdict {
		case lease.Admit, lease.AdmitAsk:
			p.held.counter.PutBack(now, checks[i].Cost, p.units)
		case lease.Wait:
			p.held.counter.Leave(checks[i].Cost)
		}
	}
}

// tellDenied fills in the results of a request that what was refused a moment ago refuses.
func (a *asking) tellDenied(now core.Micros) {
	checks, results := a.plan.Checks(), a.plan.Results()
	at := a.attrs.view.At
	for i := range a.parts {
		if p := &a.parts[i]; p.verdict == lease.Deny {
			p.held.counter.Answer(now, checks[i].Cost, lease.Deny, &results[i])
			at = results[i].At
		}
	}
	for i := range a.parts {
		switch p := &a.parts[i]; p.verdict {
		case lease.Deny:
		case lease.Admit, lease.AdmitAsk:
			p.held.counter.Answer(now, checks[i].Cost, 0, &results[i])
		default:
			results[i] = core.Result{At: at, Remaining: checks[i].Limit.Capacity()}
		}
	}
}

// want makes the counters of the request ask with it. Where one of them is not hot, so that the next such request must make
// its call anyway, nothing is taken in advance of the others.
func (a *asking) want(now core.Micros) {
	checks, hot := a.plan.Checks(), true
	for i := range a.parts {
		p := &a.parts[i]
		switch p.verdict {
		case lease.Admit, lease.AdmitAsk:
			continue
		case lease.Ask:
			if asking, ok := p.held.counter.Ask(now, checks[i].Limit, checks[i].Cost); ok {
				p.held.pins++
				a.wants = append(a.wants, wanted{held: p.held, check: i, limit: checks[i].Limit, asking: asking})
				hot = hot && asking.Max > asking.Cost
				continue
			}
		}
		hot = false
	}
	for i := range a.wants {
		if !hot {
			a.wants[i].asking.Trim()
		}
	}
}

// unwant ends what was to be asked with a request that is not asked about.
func (a *asking) unwant() {
	unwant(a.wants)
	a.wants = nil
}

//go:noinline
func unwant(wants []wanted) {
	for i := range wants {
		h := wants[i].held
		h.pins--
		h.counter.Unasked()
	}
}

// unitsOf is what is asked of a check, as it is written.
func unitsOf(c *core.Check, w *wanted) wire.Units {
	u := wire.Units{Check: w.check, Counter: wire.CounterOf(c), Cost: w.asking.Cost, Max: w.asking.Max, ShareMille: w.asking.ShareMille}
	if u.Max > u.Cost {
		u.Age = w.asking.Age
	}
	return u
}

// age is that of so many units, as the receipt for them has it.
func (w *wanted) age(granted int64) core.Micros {
	switch {
	case w.limit.Algorithm() != core.TokenBucket:
		return 0
	case granted > w.asking.Cost:
		return w.asking.Age
	default:
		return 1
	}
}

// granted takes the answer to what was asked of a counter: nil if there is none of use. So much of it is the asker's own.
func (f *Filter) granted(w *wanted, r *core.Result, own int64, leases []wire.Lease) {
	h, now := w.held, f.elapsed()
	h.pins--
	if r == nil || r.Local || r.Overflow {
		h.counter.Failed(now)
		return
	}
	all := *r
	for i := range leases {
		if l := &leases[i]; l.Check == w.check {
			h.keep(sealed{l.Receipt, l.Granted - own, w.age(l.Granted), strings.Clone(l.Token)}) // it is cut from the reply to all
			all.Granted, all.Receipt = l.Granted, l.Receipt
		}
	}
	h.counter.Granted(now, &w.asking, &all)
	r.Remaining = min(w.limit.Capacity(), r.Remaining+h.counter.Held(now))
	f.lookAfter(h)
}

// hear takes what the answer to a request says of counters that asked for nothing with it.
func (f *Filter) hear(a *asking, wants []wanted, results []core.Result, sent core.Micros) {
	if len(f.leases.byKey) == 0 && !refused(results) {
		return
	}
	now, checks := f.elapsed(), a.plan.Checks()
next:
	for i := range results {
		for j := range wants {
			if wants[j].check == i {
				continue next
			}
		}
		c, r := &checks[i], &results[i]
		if r.Local || r.Overflow {
			continue
		}
		if h := f.leases.hold(c, r.Refused); h != nil {
			h.counter.Hear(now, sent, c.Limit, c.Cost, r)
		}
	}
}

func refused(results []core.Result) bool {
	for i := range results {
		if results[i].Refused {
			return true
		}
	}
	return false
}

// lease takes what the answer to a rider says of counters. An answer that says what the request's credentials are worth is
// about another client than the one that the units were asked for, for all that is known here.
func (f *Filter) lease(r *rider, got *wire.Answer, ok bool, sent core.Micros) {
	defer f.guard() // the rider is to have its answer whatever becomes of this
	n := max(1, r.checks)
	ok = ok && got.Verdict == nil && len(got.Results) == n
	for i := range r.wants {
		w := &r.wants[i]
		switch {
		case !ok:
			f.granted(w, nil, 0, nil)
		case r.extra:
			f.granted(w, &got.Results[0], 0, got.Leases)
		default:
			result := &got.Results[w.check]
			f.granted(w, result, result.Granted, got.Leases)
		}
	}
	if s := r.stream; ok && s != nil && s.state == waiting {
		if s.asking.alike {
			f.hear(s.asking, r.wants, got.Results, sent)
		}
		if r.gate != nil {
			r.gate.learn(s.asking, got.Results)
		}
	}
}

// units says what is asked for with a request that is sent now.
func (f *Filter) units(a *asking) []wire.Units {
	if !f.leases.reads {
		a.unwant()
	}
	if f.leases.units = f.leases.units[:0]; len(a.wants) == 0 {
		return nil
	}
	now, checks := f.elapsed(), a.plan.Checks()
	for i := range a.wants {
		w := &a.wants[i]
		w.held.counter.Sending(now, &w.asking)
		if !w.asking.Plain() {
			f.leases.units = append(f.leases.units, unitsOf(&checks[w.check], w))
		}
	}
	return f.leases.units
}

// fetch makes a call in advance, in the name of a request that is admitted.
func (f *Filter) fetch(now core.Micros, a *asking, check int) {
	if f.calls.failures >= failuresMax || !f.leases.reads || a.attrs.size() > fetchBytesMax {
		return
	}
	h, c := a.parts[check].held, &a.plan.Checks()[check]
	asking, ok := h.counter.Ask(now, c.Limit, 0)
	if !ok {
		return
	}
	h.pins++
	next := &extra{version: a.policy.version, wants: []wanted{{held: h, check: check, limit: c.Limit, asking: asking}}}
	f.leases.units = append(f.leases.units[:0], unitsOf(c, &next.wants[0]))
	f.extra(next, wire.AppendAsk(nil, wire.KindFetch, &a.attrs.ask, f.leases.units))
}

// extra has an item go with the next call.
//
//go:noinline
func (f *Filter) extra(next *extra, item []byte) {
	next.item = item
	f.leases.extras = append(f.leases.extras, next)
	f.summon() // without it, with the next call
}

// boardExtras puts into a call of a version of the policy what goes with it. Units go back once, whatever becomes of the call.
func (f *Filter) boardExtras(version string) {
	c, l := &f.calls, &f.leases
	kept := l.extras[:0]
	for _, next := range l.extras {
		switch {
		case !l.reads, next.wants != nil && next.version != f.policy.version:
			unwant(next.wants)
		case next.wants != nil && next.version != version || !c.spares(len(next.item)):
			kept = append(kept, next)
		default:
			c.body = append(c.body, next.item...)
			c.lease()
			c.boarding.riding = append(c.boarding.riding, rider{wants: next.wants, extra: true})
		}
	}
	clear(l.extras[len(kept):])
	l.extras = kept
}

// spares reports whether so many bytes that no request waits for may ride with what does already.
func (c *calls) spares(bytes int) bool {
	riding := len(c.boarding.riding)
	return riding == 0 || riding < extraItemsMax && len(c.body)+bytes <= extraBytesMax
}
