// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

type ruleCost struct {
	when condition
	n    int64
}

func compileCosts(at string, sources []Cost, v *verifier) []ruleCost {
	costs := make([]ruleCost, len(sources))
	for i, source := range sources {
		when, problems := compileMatch(at+".cost["+strconv.Itoa(i)+"].match", source.Match)
		v.problems = append(v.problems, problems...)
		costs[i] = ruleCost{when: when, n: source.N}
	}
	return costs
}

// cost returns what the request costs under the rule. Of a path that servers read in more than one way it is no less than
// what each of them would cost.
func (r *rule) cost(req *request) int64 {
	most := int64(1)
	for i := range r.costs {
		c := &r.costs[i]
		if !c.when.holds(req) {
			continue
		}
		most = max(most, c.n)
		if c.when.certain(req) {
			return most
		}
	}
	return most
}
