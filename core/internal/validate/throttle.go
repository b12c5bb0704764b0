// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// checkThrottle checks how long requests may wait. Unbounded waiting requests would exhaust the
// proxy, so a policy must set both bounds.
func (v *Verifier) checkThrottle(at string, r *policy.Rule) {
	const howTo = "write throttle: { max_delay: 2s, max_waiting: 1000 }, or action: reject to answer 429 at once"
	t := r.Throttle
	switch {
	case r.Action != policy.ActionThrottle && t != nil:
		v.problem(at+".throttle", "", "goes with action: throttle only", "write action: throttle, or leave it out")
		return
	case r.Action != policy.ActionThrottle:
		return
	case t == nil:
		v.problem(at+".throttle", "", "is missing: it says how many requests may wait, and how long", howTo)
		return
	}
	if t.MaxDelay < counter.Millisecond || t.MaxDelay > policy.DelayMax {
		v.problem(at+".throttle.max_delay", t.MaxDelay.String(), "is out of bounds", "write 1ms to 1m")
	}
	if t.MaxWaiting < 1 || t.MaxWaiting > policy.WaitingMax {
		v.problem(at+".throttle.max_waiting", strconv.Itoa(t.MaxWaiting), "is out of bounds",
			"write 1 to "+strconv.Itoa(policy.WaitingMax))
	}
}
