// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math/bits"

	"github.com/penstock/penstock/core/counter"
)

// usage records how many units a client used at an instant. Refunded units are subtracted from it;
// for a bucket, the refund is recorded as negative usage instead.
type usage struct {
	at    counter.Micros
	units int64
}

// greedy is a client that takes as many units as it can from one counter, at the instants
// that suit it best.
type greedy struct {
	limit counter.Limit
	used  []usage
}

const noon counter.Micros = 1_700_049_600 * counter.Second

// perWindow returns the units used in each aligned window.
func (g *greedy) perWindow() map[counter.Micros]int64 {
	units := map[counter.Micros]int64{}
	for _, u := range g.used {
		units[u.at-u.at%g.limit.Window()] += u.units
	}
	return units
}

// mostInSpan returns the greatest number of units used in any span as long as a window.
func (g *greedy) mostInSpan() (most int64) {
	for i := range g.used {
		units := int64(0)
		for _, u := range g.used[i:] {
			if u.at >= g.used[i].at+g.limit.Window() {
				break
			}
			units += u.units
		}
		most = max(most, units)
	}
	return most
}

// countGained returns how many tokens a bucket gains in a span.
func countGained(l *counter.Limit, span counter.Micros) int64 {
	high, low := bits.Mul64(uint64(l.Count()), uint64(span))
	tokens, _ := bits.Div64(high, low, uint64(l.Window()))
	return int64(tokens)
}
