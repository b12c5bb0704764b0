// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"

	"github.com/penstock/penstock/internal/policyfile"
)

// CountedTwice returns those rules of two policies whose counters are not the same, and belong to
// more than one client. If each client is decided by one of the policies, a client that can choose
// which one may use the counters of both.
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

// The function isShared reports whether a counter of a rule may belong to several clients.
func isShared(r *policyfile.Rule) bool {
	of := dimensionsOf(r)
	return !slices.Contains(of, "client") && !slices.Contains(of, "user")
}
