// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

// Throttled is a check that requests may wait for.
type Throttled struct {
	Check    int // its index in Plan.Checks
	Throttle *Throttle
}

// Throttled returns the throttles that the request is under, one for each counter. A front asks before it asks the
// store: those that already wait for a counter come first. Valid until Reset, or until it is asked again; it allocates
// only until the plan's buffer has grown.
func (p *Plan) Throttled() []Throttled {
	p.throttled = p.throttled[:0]
	if p.refusal != refusalNone {
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

// Delayed says, after Decide, that the request had waited before it was admitted: throttle rules then have the outcome
// delayed. Of a request that was refused in the end it says nothing.
func (p *Plan) Delayed() {
	for i := range p.uses {
		if u := &p.uses[i]; u.rule.after.throttle != nil && !u.unlimited && p.outcomes[i].Outcome == OutcomeAllowed {
			p.outcomes[i].Outcome = OutcomeDelayed
		}
	}
}

// GiveUp says, after a Decide with a Delay, that nobody waits with this plan, or any longer: the refusal is final. The turns of
// rules with shards, which it charged nothing to, are then those of the next requests.
func (p *Plan) GiveUp() { p.passTurns() }

// delay returns how long a refused request must wait for all that refuses it, 0 if that is more than one of the rules
// lets requests wait, also one that has room itself, or if a check refuses that no request may wait for. Then the refusal is
// final: there is no sense in waiting for one limit to be refused by another.
func (p *Plan) delay() Micros {
	longest, shortest := Micros(0), DelayMax
	for i := range p.results {
		throttle, refused := p.ruleOf(i).after.throttle, p.results[i].Refused && !p.checks[i].Shadow
		if throttle != nil {
			shortest = min(shortest, throttle.MaxDelay)
		} else if refused {
			return 0
		}
		if refused {
			longest = max(longest, p.results[i].Wait)
		}
	}
	if longest > shortest {
		return 0
	}
	return longest
}

// Bounds of a throttle.
const (
	DelayMax   = Minute  // what waits holds a connection, and clients give up
	WaitingMax = 100_000 // waiting requests of one counter: each holds its memory
)

// throttle checks how long requests may wait. Without a bound on their number they would be an attack that the proxy
// mounts on itself, so both bounds are written.
func (v *verifier) throttle(at string, r *Rule) {
	const howTo = "write throttle: { max_delay: 2s, max_waiting: 1000 }, or action: reject if it is to be a 429 at once"
	t := r.Throttle
	switch {
	case r.Action != ActionThrottle && t != nil:
		v.problem(at+".throttle", "", "goes with action: throttle only", "write action: throttle, or leave it out")
		return
	case r.Action != ActionThrottle:
		return
	case t == nil:
		v.problem(at+".throttle", "", "is missing: it says how many requests may wait, and how long", howTo)
		return
	}
	if t.MaxDelay < Millisecond || t.MaxDelay > DelayMax {
		v.problem(at+".throttle.max_delay", t.MaxDelay.String(), "is out of bounds", "write 1ms to 1m")
	}
	if t.MaxWaiting < 1 || t.MaxWaiting > WaitingMax {
		v.problem(at+".throttle.max_waiting", strconv.Itoa(t.MaxWaiting), "is out of bounds",
			"write 1 to "+strconv.Itoa(WaitingMax))
	}
}
