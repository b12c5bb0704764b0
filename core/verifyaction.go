// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
)

func (v *verifier) costs(at string, r *Rule) {
	if len(r.Cost) > costsMax {
		v.problem(at+".cost", strconv.Itoa(len(r.Cost)), fmt.Sprintf("are more than %d entries", costsMax),
			"split the rule")
		return
	}
	for i := range r.Cost {
		v.cost(fmt.Sprintf("%s.cost[%d].n", at, i), r, r.Cost[i].N)
		if i > 0 && matchesAll(&r.Cost[i-1].Match) {
			v.problem(fmt.Sprintf("%s.cost[%d]", at, i), "", fmt.Sprintf("is never reached: cost[%d] matches everything", i-1),
				"put the entry without match last")
		}
	}
}

func (v *verifier) cost(place string, r *Rule, n int64) {
	value := strconv.FormatInt(n, 10)
	if n < 1 || n > CountMax {
		v.problem(place, value, "is out of bounds", fmt.Sprintf("write 1 to %d", CountMax))
		return
	}
	for i := range r.Limits {
		if l := &r.Limits[i]; l.algorithm != 0 && n > l.Capacity() {
			v.problem(place, value, fmt.Sprintf("can never pass limit[%d], %s", i, l),
				fmt.Sprintf("lower it to %d, or raise the limit", l.Capacity()))
		}
	}
}

// actions checks what a rule says of its action beside what it counts: throttle.
func (v *verifier) actions(at string, r *Rule) {
}
