// SPDX-License-Identifier: Apache-2.0

package filter

// Envoy puts another filter in a filter's place with every change of its configuration, and so with every policy that it gives out.
// The one before ends with its last request, and makes no calls from then on. What it had in hand goes back by the calls of another.

// End ends the filter, which must not be used any more but for [Filter.Inherit].
func (f *Filter) End() {
	defer f.guard()
	defer f.tickEvery(0) // Envoy keeps the timer of a filter that is gone, and would go on waking the worker for nobody
	f.tellHeld(0)        // first: whatever becomes of the rest, all workers share the gauge
	f.calls.woken = true // from now on nobody is to be woken for it
	f.releaseAll(f.elapsed())
}

// Inherit takes over what another filter in this worker, which has ended, had to tell the bridge. It reports false if they ask
// different ones. What nobody inherits is lost until the windows end; after a panic as well, since nothing may have two heirs.
func (f *Filter) Inherit(ended *Filter) bool {
	defer f.guard()
	if !f.config.sameBridge(&ended.config) {
		return false
	}
	settling, extras := ended.calls.settling, ended.leases.extras
	ended.calls.settling, ended.leases.extras = nil, nil
	f.leases.reads = f.leases.reads || ended.leases.reads
	for _, d := range settling {
		f.tell(d)
	}
	for _, next := range extras {
		if next.wants == nil && len(f.leases.extras) < extrasMax {
			f.extra(next, next.item)
		}
	}
	f.hurry() // should the end of the turn not be told of
	return true
}
