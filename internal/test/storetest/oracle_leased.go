// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/big"

	corecounter "github.com/penstock/penstock/core/counter"
)

// leasedUntil returns the latest end of a lease in a history, or 0 if there was no lease.
func leasedUntil(events []event) (until corecounter.Micros) {
	for _, e := range events {
		if e.age > 0 {
			until = max(until, e.at+e.age)
		}
	}
	return until
}

// tokensIn returns the greatest number of tokens that a bucket can refill in a span, for any
// position of the ticks.
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

// restorableUnits computes how many units a refund can restore to a token bucket. For a lease, the
// units that the bucket has refilled since the grant are subtracted. This refill counts up to now
// or, if that is later, up to the end of the last lease minus the age of the refunded lease.
func restorableUnits(events []event, c *corecounter.Check, at corecounter.Micros) int64 {
	if c.Age == 0 {
		return c.Cost
	}
	meanwhile := max(at, leasedUntil(events)-c.Age) - c.Receipt
	return max(0, c.Cost-ceil(tokensIn(c.Limit, max(0, meanwhile))))
}

// floor rounds a number down. For example, it rounds -1.5 to -2.
func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
