// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math"

	"github.com/penstock/penstock/core/counter"
)

// A rate estimates the units requested per second, with exponential decay.
type rate struct {
	perSecond float64
	at        counter.Micros
	since     counter.Micros // the first request, 0 for none
	span      counter.Micros // time after which a request has lost most of its weight
}

func (r *rate) add(now counter.Micros, units int64) {
	if r.since == 0 {
		r.since = now
	}
	r.perSecond = r.now(now) + float64(units)*float64(counter.Second)/float64(r.span)
	r.at = max(r.at, now)
}

// rate.now returns the estimate at an instant.
func (r *rate) now(now counter.Micros) float64 {
	return r.perSecond * math.Exp(-float64(max(0, now-r.at))/float64(r.span))
}

// rate.young reports whether requests have arrived for less time than the estimate needs.
func (r *rate) young(now counter.Micros) bool { return r.since == 0 || now-r.since < r.span }
