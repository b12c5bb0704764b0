// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/lease"
)

// checkPart holds the local state of one check of a request.
type checkPart struct {
	held    *heldLease
	units   lease.Held // the number of units taken, if the check was admitted
	verdict lease.Verdict
}

// decideLocally decides the request locally if possible, and otherwise prepares its question. The
// result named done reports whether the request is decided.
func (s *Stream) decideLocally() (action Action, done bool) {
	f, a := s.f, s.asking
	a.forgetParts() // they are from the time at which the request joined a queue
	deny, admit := a.plan.LocalDecision()
	if a.denies = deny && !a.unsure && !a.dated; !a.denies {
		return Continue, false
	}
	a.admits = admit && f.leases.reads && f.denials.mayGather(a)
	if a.denies = a.admits || !f.leases.exact; !a.denies {
		return Continue, false
	}
	if !a.admits && len(f.leases.byKey) == 0 {
		return Continue, false // no recent denials: the checks below would find none
	}
	if a.admits && f.stale {
		a.attrs.Ask.Known = 0 // this makes the bridge verify the credentials again
		return Continue, false
	}
	now := f.elapsedTime()
	inHand, denied := f.look(now, a, a.admits)
	switch {
	case denied:
		return s.denyRemembered(now), true
	case inHand == len(a.parts):
		return s.admitFromLease(now), true
	}
	a.putBack(now)
	return Continue, false
}

// Filter.look evaluates each check without the bridge. If the argument named takes is true, look
// takes leased units for the checks. If it is false, look only finds recent denials.
func (f *Filter) look(now counter.Micros, a *askingData, takes bool) (inHand int, denied bool) {
	checks := a.plan.Checks()
	for i := range checks {
		c := &checks[i]
		p := checkPart{held: f.leases.holdLease(c, takes)}
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

// forgetParts discards the results of the method named look.
//
//go:noinline
func (a *askingData) forgetParts() {
	clear(a.parts)
	a.parts, a.admits = a.parts[:0], false
}

// isRemembered reports whether a recent denial denies a request that is not decided locally.
//
//go:noinline
func (s *Stream) isRemembered() (denied bool) {
	f, a := s.f, s.asking
	if !a.alike || a.unsure || len(f.leases.byKey) == 0 {
		return false
	}
	a.forgetParts()
	_, denied = f.look(f.elapsedTime(), a, false)
	return denied
}

// denyRemembered denies a request because of a recent denial.
//
//go:noinline
func (s *Stream) denyRemembered(now counter.Micros) Action {
	a := s.asking
	a.putBack(now)
	a.fillDenied(now)
	s.f.host.Count(CounterRemembered)
	return s.decideByResults()
}

// admitFromLease admits a request whose units are all leased.
func (s *Stream) admitFromLease(now counter.Micros) Action {
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
	return s.decideByResults()
}

// putBack undoes the effects of the method named look on the counters.
func (a *askingData) putBack(now counter.Micros) {
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

// fillDenied fills in the results of a request that a recent denial denies.
func (a *askingData) fillDenied(now counter.Micros) {
	checks, results := a.plan.Checks(), a.plan.Results()
	at := a.attrs.View.At
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
			results[i] = counter.Result{At: at, Remaining: checks[i].Limit.Capacity()}
		}
	}
}

// wantUnits adds to the request's question the units to take for its counters. If one of them is
// not busy enough for a lease, the next request must make a call anyway, so no units are taken in
// advance.
func (a *askingData) wantUnits(now counter.Micros) {
	checks, hot := a.plan.Checks(), true
	for i := range a.parts {
		p := &a.parts[i]
		switch p.verdict {
		case lease.Admit, lease.AdmitAsk:
			continue
		case lease.Ask:
			if asking, ok := p.held.counter.Ask(now, checks[i].Limit, checks[i].Cost); ok {
				p.held.pins++
				a.wants = append(a.wants, wantedUnits{held: p.held, check: i, limit: checks[i].Limit, asking: asking})
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

// cancelWants drops the wanted units of a request that makes no call.
func (a *askingData) cancelWants() {
	clearWants(a.wants)
	a.wants = nil
}

//go:noinline
func clearWants(wants []wantedUnits) {
	for i := range wants {
		h := wants[i].held
		h.pins--
		h.counter.CancelCall()
	}
}

// unitsOf encodes the wanted units of a check.
func unitsOf(c *counter.Check, w *wantedUnits) wire.Units {
	u := wire.Units{Check: w.check, Counter: wire.CounterOf(c), Cost: w.asking.Cost, Max: w.asking.Max, ShareMille: w.asking.ShareMille}
	if u.Max > u.Cost {
		u.Age = w.asking.Age
	}
	return u
}

// ageOf returns the age of granted units, as stated in their receipt.
func (w *wantedUnits) ageOf(granted int64) counter.Micros {
	switch {
	case w.limit.Algorithm() != counter.TokenBucket:
		return 0
	case granted > w.asking.Cost:
		return w.asking.Age
	default:
		return 1
	}
}

// takeGranted processes the result for a wanted counter. The argument r is nil if there is no
// usable answer; the argument own is the part of the grant that the request itself uses.
func (f *Filter) takeGranted(w *wantedUnits, r *counter.Result, own int64, leases []wire.Lease) {
	h, now := w.held, f.elapsedTime()
	h.pins--
	if r == nil || r.Local || r.Overflow {
		h.counter.Failed(now)
		return
	}
	all := *r
	for i := range leases {
		if l := &leases[i]; l.Check == w.check {
			// the text is a part of the whole reply
			h.keep(sealedReceipt{receipt: l.Receipt, units: l.Granted - own, age: w.ageOf(l.Granted), text: strings.Clone(l.Token)})
			all.Granted, all.Receipt = l.Granted, l.Receipt
		}
	}
	h.counter.Granted(now, &w.asking, &all)
	r.Remaining = min(w.limit.Capacity(), r.Remaining+h.counter.Held(now))
	f.lookAfter(h)
}

// takeResults processes the results of an answer for counters without wanted units.
func (f *Filter) takeResults(a *askingData, wants []wantedUnits, results []counter.Result, sent counter.Micros) {
	if len(f.leases.byKey) == 0 && !anyDenied(results) {
		return
	}
	now, checks := f.elapsedTime(), a.plan.Checks()
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
		if h := f.leases.holdLease(c, r.Denied); h != nil {
			h.counter.Observe(now, sent, c.Limit, c.Cost, r)
		}
	}
}

func anyDenied(results []counter.Result) bool {
	for i := range results {
		if results[i].Denied {
			return true
		}
	}
	return false
}

// Filter.lease processes the results of an answer for the counters of an item. If the answer has
// verdicts on the credentials, the results can be for a client other than that of the wanted units.
func (f *Filter) lease(r *batchItem, got *wire.Answer, ok bool, sent counter.Micros) {
	defer f.guard() // the request gets its answer even if the following code panics
	n := max(1, r.checks)
	if s := r.stream; ok && s != nil && s.state == waiting && got.Verdict == nil && len(got.Results) == len(s.asking.plan.Checks()) {
		// this comes before held units are added to Remaining
		f.uses.learn(sent, s.asking.plan.Checks(), got.Results)
	}
	ok = ok && got.Verdict == nil && len(got.Results) == n
	for i := range r.wants {
		w := &r.wants[i]
		switch {
		case !ok:
			f.takeGranted(w, nil, 0, nil)
		case r.extra:
			f.takeGranted(w, &got.Results[0], 0, got.Leases)
		default:
			result := &got.Results[w.check]
			f.takeGranted(w, result, result.Granted, got.Leases)
		}
	}
	if s := r.stream; ok && s != nil && s.state == waiting {
		if s.asking.alike {
			f.takeResults(s.asking, r.wants, got.Results, sent)
		}
		if r.gate != nil {
			r.gate.learn(s.asking, got.Results)
		}
	}
}

// unitsToTake returns the units to take with a request that is sent now.
func (f *Filter) unitsToTake(a *askingData) []wire.Units {
	if !f.leases.reads {
		a.cancelWants()
	}
	if f.leases.units = f.leases.units[:0]; len(a.wants) == 0 {
		return nil
	}
	now, checks := f.elapsedTime(), a.plan.Checks()
	for i := range a.wants {
		w := &a.wants[i]
		w.held.counter.Sending(now, &w.asking)
		if !w.asking.Plain() {
			f.leases.units = append(f.leases.units, unitsOf(&checks[w.check], w))
		}
	}
	return f.leases.units
}

// Filter.fetch takes units in advance by repeating the question of a request that is admitted.
func (f *Filter) fetch(now counter.Micros, a *askingData, check int) {
	if f.calls.failures >= failuresMax || !f.leases.reads || a.attrs.size() > fetchBytesMax {
		return
	}
	h, c := a.parts[check].held, &a.plan.Checks()[check]
	asking, ok := h.counter.Ask(now, c.Limit, 0)
	if !ok {
		return
	}
	h.pins++
	next := &extra{version: a.policy.version, wants: []wantedUnits{{held: h, check: check, limit: c.Limit, asking: asking}}}
	f.leases.units = append(f.leases.units[:0], unitsOf(c, &next.wants[0]))
	f.enqueueExtra(next, wire.AppendAsk(nil, wire.KindFetch, &a.attrs.Ask, f.leases.units))
}

// enqueueExtra enqueues an item for the next call.
//
//go:noinline
func (f *Filter) enqueueExtra(next *extra, item []byte) {
	next.item = item
	f.leases.extras = append(f.leases.extras, next)
	f.scheduleFlush() // if this fails, the extra is sent with the next call
}

// appendExtras adds to a call the extras of its version of the policy. A refund is sent once, even
// if the call fails.
func (f *Filter) appendExtras(version string) {
	c, l := &f.calls, &f.leases
	kept := l.extras[:0]
	for _, next := range l.extras {
		switch {
		case !l.reads && (next.wants != nil || next.version == ""), next.wants != nil && next.version != f.policy.version:
			clearWants(next.wants)
		case next.version != "" && next.version != version || !c.sparesRoom(len(next.item)):
			kept = append(kept, next)
		default:
			c.body = append(c.body, next.item...)
			c.lease()
			r := batchItem{wants: next.wants, extra: true}
			if next.isReport() {
				r.report = next
			}
			c.recordItem(&r)
		}
	}
	clear(l.extras[len(kept):])
	l.extras = kept
}

// sparesRoom reports whether an extra of the given number of bytes can share the call with the
// items that the call already has.
func (c *calls) sparesRoom(bytes int) bool {
	items := len(c.filling.items)
	return items == 0 || items < extraItemsMax && len(c.body)+bytes <= extraBytesMax
}
