// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/big"

	"github.com/penstock/penstock/core"
)

// leasedUntil returns until when units of a history may be out on lease, 0 if there was no lease.
func leasedUntil(events []event) (until core.Micros) {
	for _, e := range events {
		if e.age > 0 {
			until = max(until, e.at+e.age)
		}
	}
	return until
}

// brings returns the tokens that a span brings a bucket at most, wherever its ticks fall.
func brings(l *core.Limit, span core.Micros) *big.Rat {
	rate, tick := perTick(l)
	return new(big.Rat).Mul(rate, big.NewRat(ceil(big.NewRat(int64(span), int64(tick))), 1))
}

// upTo works out what an up-to-n check gets where there is room.
func (o *oracle) upTo(c *core.Check, room int64) int64 {
	granted, leasable := min(room, c.Cost), room
	if c.Age > 0 && c.Limit.Algorithm() == core.TokenBucket {
		most := new(big.Rat).Sub(big.NewRat(c.Limit.Capacity(), 1), brings(c.Limit, c.Age))
		leasable = min(room, floor(most))
	}
	if leasable > granted {
		granted += min(c.Max-granted, (leasable-granted)*c.ShareMille/1000)
	}
	return granted
}

// leftOf works out what a give-back of a token bucket returns at most: of a lease what is not refilled from its grant
// until as long before the end of the last lease as it lasted itself, or until now.
func leftOf(events []event, c *core.Check, at core.Micros) int64 {
	if c.Age == 0 {
		return c.Cost
	}
	meanwhile := max(at, leasedUntil(events)-c.Age) - c.Receipt
	return max(0, c.Cost-ceil(brings(c.Limit, max(0, meanwhile))))
}

// floor rounds down, below zero too.
func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
