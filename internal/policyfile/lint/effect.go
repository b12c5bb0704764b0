// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/policyfile"
)

// CountsClients reports whether a rule denies single clients, so that a penalty has an effect.
func CountsClients(d *policyfile.Document) bool {
	return slices.ContainsFunc(d.Rules, func(r policyfile.Rule) bool {
		if r.Enabled != nil && !*r.Enabled || r.Action != "" && r.Action != "reject" {
			return false
		}
		return slices.ContainsFunc(dimensionsOf(&r), func(dimension string) bool {
			return dimension == "client" || dimension == "user" || dimension == "api_key"
		})
	})
}

// CountsByCalendar reports whether a limit of the policy has a calendar window, or whether a limit
// in a token or an API key could have one, so that a time zone has an effect.
func CountsByCalendar(d *policyfile.Document) bool {
	if slices.ContainsFunc(d.Identify, func(i policyfile.Identify) bool { return i.Verified() != "" }) {
		return true
	}
	return slices.ContainsFunc(d.Rules, func(r policyfile.Rule) bool {
		for _, tier := range tiersOf(&r, &r) {
			for _, text := range limitsOf(&r, tier) {
				if l, err := counter.ParseLimit(text); err == nil && l.Calendar() != 0 {
					return true
				}
			}
		}
		return false
	})
}
