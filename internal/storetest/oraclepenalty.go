// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"slices"

	"github.com/penstock/penstock/core"
)

// record is all that ever happened to the client of a penalty.
type record struct {
	violations []core.Violation // distinct ones, forgotten ones too, oldest first
	imposed    []span           // the penalties
}

// span is a time, its end not included.
type span struct{ from, until core.Micros }

// inForce returns how long from an instant on a penalty still lasts.
func (r *record) inForce(at core.Micros) (wait core.Micros) {
	for _, s := range r.imposed {
		if s.from <= at && at < s.until {
			wait = max(wait, s.until-at)
		}
	}
	return wait
}

// remembered returns the violations of the last window, the newest if there are more than are remembered.
func (r *record) remembered(p *core.Penalty, at core.Micros) (out []core.Violation) {
	for _, v := range r.violations {
		if v.At > at-p.Window && v.At <= at {
			out = append(out, v)
		}
	}
	return out[max(0, len(out)-core.ViolationsMax):]
}

// punished works out what the answer to the check of a penalty must be, and remembers what follows from it. results are
// the answers to the other checks, which have been examined.
func (o *oracle) punished(at core.Micros, checks []core.Check, results []core.Result, i int, admitted, penalized bool) core.Result {
	c, want := &checks[i], core.Result{At: at}
	r := o.record(c)
	if c.Op == core.OpReset {
		want.Granted = int64(len(r.remembered(c.Penalty, at)))
		*r = record{}
		return want
	}
	want.Wait = r.inForce(at)
	want.Refused = want.Wait > 0
	if c.Op == core.OpTake && admitted {
		return want
	}
	if c.Op == core.OpTake && !penalized {
		longest, distinct := r.violate(at, checks, results, i)
		remembered := r.remembered(c.Penalty, at)
		if over := int64(len(remembered)) - c.Penalty.Threshold; distinct && over >= 0 {
			want.Refused, want.Wait = true, sentence(c.Penalty, longest, over)
			r.imposed = append(r.imposed, span{at, at + want.Wait})
		}
	}
	want.Violations = int64(len(r.remembered(c.Penalty, at)))
	return want
}

// violate remembers the refusals of a call that are violations in the record of check guard. longest is the longest wait
// of theirs, and distinct whether one of them is not the same as one that is remembered.
func (r *record) violate(at core.Micros, checks []core.Check, results []core.Result, guard int) (longest core.Micros,
	distinct bool) {
	penalty := checks[guard].Penalty
	for i := range checks {
		c, answer := &checks[i], &results[i]
		if c.Guard != guard+1 || !answer.Refused || c.Shadow || answer.Wait == core.Never ||
			c.Op != core.OpTake && c.Op != core.OpUpTo {
			continue
		}
		longest = max(longest, answer.Wait)
		same := func(v core.Violation) bool { return v.ID == c.Violation && at < v.Until }
		if !slices.ContainsFunc(r.remembered(penalty, at), same) {
			distinct = true
			r.violations = append(r.violations, core.Violation{At: at, Until: at + answer.Wait, ID: c.Violation})
		}
	}
	return longest, distinct
}

// sentence returns how long a penalty lasts that is imposed after so many violations over the threshold.
func sentence(p *core.Penalty, wait core.Micros, over int64) core.Micros {
	multiplier, longest := p.Multipliers[len(p.Multipliers)-1], p.Max
	if over < int64(len(p.Multipliers)) {
		multiplier = p.Multipliers[over]
	}
	if longest == 0 {
		longest = p.Window
	}
	if wait > longest/core.Micros(multiplier) { // the product is more, or may not fit
		return longest
	}
	return wait * core.Micros(multiplier)
}

func (o *oracle) record(c *core.Check) *record {
	if o.records[string(c.Key)] == nil {
		o.records[string(c.Key)] = &record{}
	}
	return o.records[string(c.Key)]
}

// penalized reports whether a penalty refuses the call.
func (o *oracle) penalized(at core.Micros, checks []core.Check) bool {
	return slices.ContainsFunc(checks, func(c core.Check) bool {
		return c.Penalty != nil && c.Op == core.OpTake && o.record(&c).inForce(at) > 0
	})
}
