// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"slices"

	corecounter "github.com/penstock/penstock/core/counter"
)

// record is the whole history of the penalty of one client.
type record struct {
	violations []corecounter.Violation // each one once, including expired ones, oldest first
	imposed    []span                  // the spans of all penalties that were imposed
}

// span is a time interval, excluding its end.
type span struct{ from, until corecounter.Micros }

// record.inForce returns how much longer the penalty that is in force at an instant lasts, or 0 if
// none is in force.
func (r *record) inForce(at corecounter.Micros) (wait corecounter.Micros) {
	for _, s := range r.imposed {
		if s.from <= at && at < s.until {
			wait = max(wait, s.until-at)
		}
	}
	return wait
}

// record.remembered returns the violations of the last window. If there are more than the maximum,
// it returns only the newest.
func (r *record) remembered(p *corecounter.Penalty, at corecounter.Micros) (out []corecounter.Violation) {
	for _, v := range r.violations {
		if v.At > at-p.Window && v.At <= at {
			out = append(out, v)
		}
	}
	return out[max(0, len(out)-corecounter.ViolationsMax):]
}

// oracle.punished computes the answer to the check of a penalty, and records the consequences of
// the call. The argument named results holds the answers to the other checks.
func (o *oracle) punished(at corecounter.Micros, checks []corecounter.Check, results []corecounter.Result, i int, admitted, penalized bool) corecounter.Result {
	c, want := &checks[i], corecounter.Result{At: at}
	r := o.record(c)
	if c.Op == corecounter.OpReset {
		want.Granted = int64(len(r.remembered(c.Penalty, at)))
		*r = record{}
		return want
	}
	want.Wait = r.inForce(at)
	want.Denied = want.Wait > 0
	if c.Op == corecounter.OpTake && admitted {
		return want
	}
	if c.Op == corecounter.OpTake && !penalized {
		longest, distinct := r.violate(at, checks, results, i)
		remembered := r.remembered(c.Penalty, at)
		if over := int64(len(remembered)) - c.Penalty.Threshold; distinct && over >= 0 {
			want.Denied, want.Wait = true, sentence(c.Penalty, longest, over)
			r.imposed = append(r.imposed, span{at, at + want.Wait})
		}
	}
	want.Violations = int64(len(r.remembered(c.Penalty, at)))
	return want
}

// record.violate records those denials of a call that are violations for the check at the index
// guard. The result named longest is the longest wait of these denials, and distinct reports
// whether one of them was not recorded yet.
func (r *record) violate(at corecounter.Micros, checks []corecounter.Check, results []corecounter.Result, guard int) (longest corecounter.Micros,
	distinct bool) {
	penalty := checks[guard].Penalty
	for i := range checks {
		c, answer := &checks[i], &results[i]
		if c.Guard != guard+1 || !answer.Denied || c.Shadow || answer.Wait == corecounter.Never ||
			c.Op != corecounter.OpTake && c.Op != corecounter.OpUpTo {
			continue
		}
		longest = max(longest, answer.Wait)
		same := func(v corecounter.Violation) bool { return v.ID == c.Violation && at < v.Until }
		if !slices.ContainsFunc(r.remembered(penalty, at), same) {
			distinct = true
			r.violations = append(r.violations, corecounter.Violation{At: at, Until: at + answer.Wait, ID: c.Violation})
		}
	}
	return longest, distinct
}

// sentence returns the duration of the penalty that a denial imposes. The argument named wait is
// the wait of the denial; the argument named over is the number of violations above the threshold.
func sentence(p *corecounter.Penalty, wait corecounter.Micros, over int64) corecounter.Micros {
	multiplier, longest := p.Multipliers[len(p.Multipliers)-1], p.Max
	if over < int64(len(p.Multipliers)) {
		multiplier = p.Multipliers[over]
	}
	if longest == 0 {
		longest = p.Window
	}
	if wait > longest/corecounter.Micros(multiplier) { // the product would be larger than longest, and might overflow
		return longest
	}
	return wait * corecounter.Micros(multiplier)
}

func (o *oracle) record(c *corecounter.Check) *record {
	if o.records[string(c.Key)] == nil {
		o.records[string(c.Key)] = &record{}
	}
	return o.records[string(c.Key)]
}

// oracle.penalized reports whether a penalty denies the call.
func (o *oracle) penalized(at corecounter.Micros, checks []corecounter.Check) bool {
	return slices.ContainsFunc(checks, func(c corecounter.Check) bool {
		return c.Penalty != nil && c.Op == corecounter.OpTake && o.record(&c).inForce(at) > 0
	})
}
