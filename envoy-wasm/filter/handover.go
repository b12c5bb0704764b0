// SPDX-License-Identifier: Apache-2.0

package filter

// Envoy replaces the filter at every change of its configuration, and so for every policy that
// Envoy distributes. The old filter ends with its last request and makes no calls afterwards. The
// calls of the new filter refund its leased units.

// End ends the filter. After that, only [Filter.Inherit] may use it.
func (f *Filter) End() {
	defer f.guard()
	// Envoy keeps the timer of a removed filter, which would wake the worker for nothing
	defer f.tickEvery(0)
	// this comes first, because all workers share the gauge, which must be right even if the rest
	// fails
	f.reportHeld(0)
	f.calls.woken = true // after that, the filter must not request a flush
	f.releaseAll(f.elapsedTime())
	f.reportDenials(0)
}

// Inherit takes over the settlements, refunds and reports that an ended filter of this worker still
// had to send. Inherit returns false if the two filters use different bridges. The units of items
// that no filter inherits are lost until their windows end. After a panic they are lost too,
// because items must never be inherited twice.
func (f *Filter) Inherit(ended *Filter) bool {
	defer f.guard()
	if !f.config.sameBridge(&ended.config) {
		return false
	}
	settling, extras := ended.calls.settling, ended.leases.extras
	ended.calls.settling, ended.leases.extras = nil, nil
	f.leases.reads = f.leases.reads || ended.leases.reads
	for _, d := range settling {
		f.enqueueSettlement(d)
	}
	for _, next := range extras {
		if next.wants == nil && len(f.leases.extras) < extrasMax {
			f.enqueueExtra(next, next.item)
		}
	}
	f.quickenTicks() // in case the host does not report the end of the turn
	return true
}
