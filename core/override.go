// SPDX-License-Identifier: Apache-2.0

package core

// Overrides are limits of one client's own, by the name of the rule they stand in for; "*" is every rule whose per holds
// the client and that is not named. They are immutable and safe for concurrent use. A nil *Overrides holds none.
type Overrides struct {
	sets map[string]LimitSet
}

// NewOverrides returns the overrides. The error names the rule whose limits no rule could have. It keeps the map.
func NewOverrides(byRule map[string]LimitSet) (*Overrides, error) {
	return &Overrides{sets: byRule}, nil
}
