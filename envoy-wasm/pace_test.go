// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/penstock/penstock/envoy-wasm/filter"
)

// thePaceOfTicks: ticks are slow while nothing waits, and fast as soon as a request waits for a
// call.
func thePaceOfTicks(t *testing.T, r *filterRig) {
	r.start(t, "poll: 60m")
	r.equal(t, "milliseconds at first", r.host.GetTickPeriod(), uint32(filter.TickMillis))
	idle := func() {
		for range 20 {
			r.host.Tick()
		}
		r.equal(t, "milliseconds without requests", r.host.GetTickPeriod(), uint32(1000))
	}
	idle()
	r.sendAdmitted(t, "/api/x")
	r.equal(t, "milliseconds with a request", r.host.GetTickPeriod(), uint32(filter.TickMillis))
	idle()
}
