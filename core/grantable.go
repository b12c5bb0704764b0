// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// GrantWindows returns the labels of the fixed and calendar windows of a rule and all its tiers. A
// grant can raise the limits of these windows. The result sharded reports whether the rule has
// shards; grants then have no effect.
func (rs *Ruleset) GrantWindows(rule string) (windows []string, sharded bool) {
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.name != rule {
			continue
		}
		sharded = sharded || r.sharded
		add := func(limits []ruleLimit) {
			for j := range limits {
				if l := limits[j].wholeLimit(); l.Algorithm() == counter.FixedWindow {
					windows = append(windows, l.WindowLabel())
				}
			}
		}
		add(r.limits)
		for _, set := range r.tiers {
			add(set.limits)
		}
	}
	slices.Sort(windows)
	return slices.Compact(windows), sharded
}
