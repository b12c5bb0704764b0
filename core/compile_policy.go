// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package core

import (
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
)

// Compile validates the whole policy and builds its index. The error is of type [policy.Problems]
// and holds every problem found. The Ruleset shares no memory with p. Compiling 10,000 rules takes
// a fraction of a second.
func Compile(p policy.Policy) (*Ruleset, error) {
	if wrong := validate.Policy(&p); len(wrong) > 0 {
		return nil, wrong
	}
	rs, err := Assemble(p)
	if err != nil {
		return nil, err
	}
	rs.calendar = newCalendar(p.Timezone)
	rs.granting = grantRaiser{}
	rs.divide(&p)
	rs.spread(&p)
	if crowd := rs.findTooManyChecks(&p); len(crowd) > 0 {
		return nil, crowd
	}
	return rs, nil
}
