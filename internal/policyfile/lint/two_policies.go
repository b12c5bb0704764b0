// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"

	"github.com/penstock/penstock/internal/policyfile"
)

// CountedTwice returns the names of the rules whose counters differ between two policies and belong
// to more than one client. If one policy decides the requests of some clients and the other policy
// those of all other clients, a client that can choose its policy may use the counters of both
// policies.
func CountedTwice(before, after *policyfile.Document) (rules []string) {
	zoneMoved, was := isZoneMoved(before, after), rulesByName(before)
	for i := range after.Rules {
		rule := &after.Rules[i]
		old := was[rule.Name]
		if old != nil && (isShared(old) || isShared(rule)) && len(restartedInRule(old, rule, zoneMoved)) > 0 {
			rules = append(rules, rule.Name)
		}
	}
	return rules
}

// isShared reports whether a counter of a rule may belong to several clients.
func isShared(r *policyfile.Rule) bool {
	of := dimensionsOf(r)
	return !slices.Contains(of, "client") && !slices.Contains(of, "user")
}
