// SPDX-License-Identifier: Apache-2.0

//go:build penstock_filter

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// The filter does not divide limits among regions: its bridge does.
type (
	ruleRegion  = struct{}
	limitRegion = struct{}
)

func (*ownLimits) ownPart(*rule, bool) (set *limitSet, ok bool) { return nil, false }

func (r *rule) compileOwn(set *policy.LimitSet) limitSet { return compileSet(r.name, *set) }

func (*ruleLimit) adjust(*counter.Check) {}

func (*ruleLimit) closed() bool { return false }

func (*ruleLimit) sameRegion(*ruleLimit) bool { return true }

func (*rule) part(_ *ruleLimit, units int64) int64 { return units }

func (*ruleLimit) told() bool { return false }
