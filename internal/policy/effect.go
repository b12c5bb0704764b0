// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/penstock/penstock/core"
)

// CountsClients reports whether a rule refuses single clients, so that a penalty has an effect.
func (d *Document) CountsClients() bool {
	return slices.ContainsFunc(d.Rules, func(r Rule) bool {
		if r.Enabled != nil && !*r.Enabled || r.Action != "" && r.Action != "reject" {
			return false
		}
		return slices.ContainsFunc(dimensionsOf(&r), func(dimension string) bool {
			return dimension == "client" || dimension == "user" || dimension == "api_key"
		})
	})
}

// CountsByCalendar reports whether a limit is by the calendar, or may be one that a token or an API key brings, so that a
// time zone has an effect.
func (d *Document) CountsByCalendar() bool {
	if slices.ContainsFunc(d.Identify, func(i Identify) bool { return i.verified() != "" }) {
		return true
	}
	return slices.ContainsFunc(d.Rules, func(r Rule) bool {
		for _, tier := range tiersOf(&r, &r) {
			for _, text := range r.limitsOf(tier) {
				if l, err := core.ParseLimit(text); err == nil && l.Calendar() != 0 {
					return true
				}
			}
		}
		return false
	})
}
