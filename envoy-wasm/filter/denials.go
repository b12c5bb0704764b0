// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// The bridge does not see the requests that the filter denies without a question, admits from
// leased units, or admits because no limit counts them. If the bridge reports denials as events, or
// counts usage, it requests reports in its answers. Then the filter reports these decisions once a
// second, in one item for each client and its rules. The item contains the first request and the
// number of requests.
//
// If the answer to a report is missing, the report is not sent again, because the bridge may have
// counted it. A report is sent again if the bridge was too busy to read the call. Requests that
// on_error admits are not reported, because the bridge may have counted them.

const (
	// denialsMax is the greatest number of items for denials in one second, and of items for
	// admissions. An item counts once more for each fetchBytesMax of its question. Further denials
	// are only counted. Requests that would need a further item for admissions are not admitted
	// from leased units.
	denialsMax = 256
	// reportLists is the number of lists of items. A list is searched for each decision, so it must
	// be short.
	reportLists = 64
	// reportEvery is the time for which denials are collected before they are reported.
	reportEvery = counter.Second
)

// gatheredDenials holds the denials that the bridge has not seen. Each extra has the first
// request of a client and a rule, and the number of their denials.
type gatheredDenials struct {
	_ slim.Incomparable

	wanted bool // whether the bridge wants denials
	usage  bool // whether it wants admissions, too
	since  counter.Micros
	lists  [reportLists]*extra // by the hash of the client and the rule
	count  int                 // the number of extras that report denials; see denialsMax
	admits int                 // the number of extras that report admissions
	lost   int64               // the number of denials without an extra
}

// isReport reports whether an extra is a report of denials or admissions.
func (e *extra) isReport() bool { return e.wants == nil && e.version != "" }

// mayGather reports whether an admission fits into a report, or need not be reported, because the
// bridge does not want reports of admissions.
func (r *gatheredDenials) mayGather(a *askingData) bool {
	return !r.usage || r.admits < denialsMax && a.attrs.size() <= fetchBytesMax
}

// gatherDecision counts a decision that the bridge has not seen.
//
//go:noinline
func (f *Filter) gatherDecision(a *askingData, d *core.Decision) {
	r, sign := &f.denials, int64(1)
	count := &r.count
	if !d.Denied() {
		sign, count = -1, &r.admits
	}
	if !r.wanted || sign < 0 && (!r.usage || d.Degraded) {
		return
	}
	h := hash(hash(hash(uint64(d.Outcome)+uint64(f.calls.sources.key)<<8, d.Client.Kind)+1, d.Client.ID)+1, d.Rule)
	if sign < 0 {
		outcomes := a.plan.Outcomes()
		if len(outcomes) == 0 {
			return
		}
		for i := range outcomes {
			h = (h^uint64(outcomes[i].Index))*fnvPrime ^ uint64(a.plan.Units(i))
		}
		h = hash(h, d.Client.Tier)
	}
	list := &r.lists[h%reportLists]
	for one := *list; one != nil; one = one.next {
		if one.denials[0].Counter == h {
			one.denials[0].Cost += sign
			return
		}
	}
	size := a.attrs.size()
	most := denialsMax - size/fetchBytesMax
	if sign < 0 && *count >= most {
		f.reportDenials(1) // no limit counts the request, so the bridge is not asked
	}
	if *count >= most || size > askBytesMax {
		if sign > 0 {
			r.lost++
		}
		return
	}
	if r.count+r.admits == 0 {
		r.since = f.elapsedTime()
	}
	*count += 1 + denialsMax - most
	one := new(extra)
	one.version, one.next, one.item = a.policy.version, *list, wire.AppendAsk(nil, wire.KindDenied, &a.attrs.Ask, nil)
	one.denials[0].Counter, one.denials[0].Cost, one.denials[0].Check = h, sign, -1
	results := a.plan.Results()
	for i := range results {
		if results[i].Denied {
			one.denials[0].Check = i
		}
	}
	*list = one
}

// reportDenials reports the gathered decisions if the bridge can be called and the first of them
// has waited for the given time. If that time is 0, it reports them in any case.
//
//go:noinline
func (f *Filter) reportDenials(after counter.Micros) {
	r := &f.denials
	if after > 0 && (r.count+r.admits == 0 || f.calls.failures > 0 || len(f.leases.extras) > extrasMax || f.elapsedTime()-r.since < after) {
		return
	}
	for i := range r.lists {
		for one := r.lists[i]; one != nil; one = one.next {
			one.denials[0].Max, r.lost = r.lost, 0
			f.enqueueExtra(one, wire.AppendUnits(one.item, one.denials[:]))
		}
	}
	r.lists, r.count, r.admits = [reportLists]*extra{}, 0, 0
}
