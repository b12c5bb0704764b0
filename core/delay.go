// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Throttled is a check for which requests may wait.
type Throttled struct {
	Check    int // its index in Plan.Checks
	Throttle *policy.Throttle
}

// Throttled returns the checks under throttle rules. A front calls Throttled before the store,
// because requests that already wait for a counter go first. The result is valid until Reset or the
// next call of Throttled. Once the plan's buffer has grown, Throttled does not allocate.
func (p *Plan) Throttled() []Throttled {
	p.throttled = p.throttled[:0]
	if p.denial != denialNone {
		return nil
	}
	for i := range p.uses {
		u := &p.uses[i]
		if u.rule.after.throttle == nil {
			continue
		}
		for check := u.checks[0]; check < u.checks[1]; check++ {
			p.throttled = append(p.throttled, Throttled{Check: int(check), Throttle: u.rule.after.throttle})
		}
	}
	return p.throttled
}

// Delayed is called after Decide to record that the request waited before it was admitted. The
// request's throttle rules then have OutcomeDelayed. If the request was denied in the end, Delayed
// does nothing.
func (p *Plan) Delayed() {
	for i := range p.uses {
		if u := &p.uses[i]; u.rule.after.throttle != nil && !u.unlimited && p.outcomes[i].Outcome == OutcomeAllowed {
			p.outcomes[i].Outcome = OutcomeDelayed
		}
	}
}

// Abandon makes a denial with a Delay final. The front calls Abandon if the request does not wait
// or stops waiting. The next requests can then use the shards whose turn this request took in rules
// that charged nothing.
func (p *Plan) Abandon() { p.releaseShardTurns() }

// Plan.delay returns how long a denied request must wait until all checks pass. The result is 0 if
// the denial is final: a rule without throttle denies, or the wait exceeds the max_delay of any
// throttle rule that applies, even of a rule that has room. It would be useless to wait for one
// limit only to be denied by another.
func (p *Plan) delay() counter.Micros {
	longest, shortest := counter.Micros(0), policy.DelayMax
	for i := range p.results {
		throttle, denied := p.ruleOf(i).after.throttle, p.results[i].Denied && !p.checks[i].Shadow
		if throttle != nil {
			shortest = min(shortest, throttle.MaxDelay)
		} else if denied {
			return 0
		}
		if denied {
			longest = max(longest, p.results[i].Wait)
		}
	}
	if longest > shortest {
		return 0
	}
	return longest
}
