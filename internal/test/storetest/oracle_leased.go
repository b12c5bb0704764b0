// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/big"

	corecounter "github.com/penstock/penstock/core/counter"
)

// leasedUntil returns the end of the last lease in a history, or 0 if there was none.
func leasedUntil(events []event) (until corecounter.Micros) {
	for _, e := range events {
		if e.age > 0 {
			until = max(until, e.at+e.age)
		}
	}
	return until
}

// The function tokensIn returns the greatest number of tokens that a bucket refills in a span,
// wherever its ticks are.
func tokensIn(l *corecounter.Limit, span corecounter.Micros) *big.Rat {
	rate, tick := tokensPerTick(l)
	return new(big.Rat).Mul(rate, big.NewRat(ceil(big.NewRat(int64(span), int64(tick))), 1))
}

// grantUpTo computes the units granted to an up-to-n check for which there is room.
func (o *oracle) grantUpTo(c *corecounter.Check, room int64) int64 {
	granted, leasable := min(room, c.Cost), room
	if c.Age > 0 && c.Limit.Algorithm() == corecounter.TokenBucket {
		most := new(big.Rat).Sub(big.NewRat(c.Limit.Capacity(), 1), tokensIn(c.Limit, c.Age))
		leasable = min(room, floor(most))
	}
	if leasable > granted {
		granted += min(c.Max-granted, (leasable-granted)*c.ShareMille/1000)
	}
	return granted
}

// restorableUnits computes the greatest number of units that a refund restores to a token bucket.
// For a lease these are the units of the grant without those that have been refilled since. The
// time of the refill ends now, or when the last lease ends minus the age of this one, whichever is
// later.
func restorableUnits(events []event, c *corecounter.Check, at corecounter.Micros) int64 {
	if c.Age == 0 {
		return c.Cost
	}
	meanwhile := max(at, leasedUntil(events)-c.Age) - c.Receipt
	return max(0, c.Cost-ceil(tokensIn(c.Limit, max(0, meanwhile))))
}

// The function floor rounds down, below zero too.
func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
