// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// The bridge does not see the requests that the filter denies without asking. If the bridge reports
// denials as events, it requests reports in its answers. The filter then reports these denials once
// a second, with one item for each client and rule that contains the first request and the number
// of denials.

const (
	// denialsMax is the greatest number of items in one second. Further denials are only counted.
	denialsMax = 256
	// reportEvery is the time for which denials are gathered.
	reportEvery = counter.Second
)

// gatheredDenials gathers the denials that the bridge has not seen. Each extra has the first
// request of a client and a rule, and their number of denials.
type gatheredDenials struct {
	_ slim.Incomparable

	wanted bool
	since  counter.Micros
	first  *extra // of a list
	count  int    // the number of extras in the list
	lost   int64  // the number of denials without an extra
}

// gatherDenial counts a denial that the bridge has not seen.
//
//go:noinline
func (f *Filter) gatherDenial(a *askingData, d *core.Decision) {
	r := &f.denials
	if !r.wanted {
		return
	}
	h := hash(hash(hash(uint64(d.Outcome), d.Client.Kind)+1, d.Client.ID)+1, d.Rule)
	for one := r.first; one != nil; one = one.next {
		if one.denials[0].Counter == h {
			one.denials[0].Cost++
			return
		}
	}
	if r.count == denialsMax || a.attrs.size() > fetchBytesMax {
		r.lost++
		return
	}
	if r.count++; r.first == nil {
		r.since = f.elapsedTime()
	}
	one := new(extra)
	one.version, one.next, one.item = a.policy.version, r.first, wire.AppendAsk(nil, wire.KindDenied, &a.attrs.Ask, nil)
	one.denials[0].Counter, one.denials[0].Cost, one.denials[0].Check = h, 1, -1
	results := a.plan.Results()
	for i := range results {
		if results[i].Denied {
			one.denials[0].Check = i
		}
	}
	r.first = one
}

// reportDenials reports the gathered denials when the bridge can be called.
//
//go:noinline
func (f *Filter) reportDenials() {
	r := &f.denials
	if r.first == nil || f.calls.failures > 0 || len(f.leases.extras) > extrasMax || f.elapsedTime()-r.since < reportEvery {
		return
	}
	for one := r.first; one != nil; one = one.next {
		one.denials[0].Max, r.lost = r.lost, 0
		f.enqueueExtra(one, wire.AppendUnits(one.item, one.denials[:]))
	}
	r.first, r.count = nil, 0
}
