// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package policy

import (
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// ParseLimitSet parses limits that replace a rule's: either only [Unlimited], or 1 to
// [OverrideLimitsMax] limits in the syntax of [counter.ParseLimit].
func ParseLimitSet(texts []string) (set LimitSet, err error) {
	switch {
	case len(texts) == 0:
		return LimitSet{}, slim.NewError("has no limits: write " + slim.Quote(Unlimited) + " if there are none")
	case len(texts) > OverrideLimitsMax:
		return LimitSet{}, slim.NewError("has " + strconv.Itoa(len(texts)) + " limits, more than " + strconv.Itoa(OverrideLimitsMax))
	case len(texts) == 1 && texts[0] == Unlimited:
		return LimitSet{Unlimited: true}, nil
	}
	set.Limits = make([]counter.Limit, len(texts))
	for i, text := range texts {
		if set.Limits[i], err = counter.ParseLimit(text); err != nil {
			return LimitSet{}, err
		}
	}
	return set, nil
}
