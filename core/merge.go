// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strconv"
	"strings"
)

// Told is one of the header fields that tell of limits.
type Told uint8

// The fields of [Telling], in its order.
const (
	ToldLimit Told = iota
	ToldRemaining
	ToldReset
	ToldRateLimit
	ToldPolicy
	ToldRetryAfter
	ToldCost
	ToldCount
)

// ToldNames are the names of the fields in lower case, by Told.
var ToldNames = [ToldCount]string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit",
	"ratelimit-policy", "retry-after", "x-ratelimit-cost"}

// Telling is what a response tells of the limits, by Told; "" for a field that is not set. WWW-Authenticate is no part of
// it: it goes with our own answers only, which are merged with nothing.
type Telling [ToldCount]string

// Telling returns the fields as they are merged into a response.
func (f *Fields) Telling() Telling {
	return Telling{f.Limit, f.Remaining, f.Reset, f.RateLimit, f.Policy, f.RetryAfter, f.Cost}
}

// Correct puts the true cost in place of the estimate, where one is told of.
func (t *Telling) Correct(cost int64) {
	if t[ToldCost] != "" {
		t[ToldCost] = strconv.FormatInt(cost, 10)
	}
}

// Merge brings the fields together with those that the response has already: theirs returns the lines of a field, nil for
// none. A field that is "" afterwards stays in the response as it is, any other takes its place.
//
// Of two families of X-RateLimit-* the one with the smaller remaining stays: it is the one the client will meet first. A
// list of the IETF fields takes both, ours first. Retry-After is ours, if we have one. yields says that theirs are the
// ones to stay whatever they say, if they have a family: they tell why the request was refused. It does not allocate, but
// for lists that are put together.
func (t *Telling) Merge(remaining int64, yields bool, theirs func(Told) []string) {
	keeps := keepsTheirs(remaining, yields, theirs(ToldRemaining))
	for i := range t {
		switch field := Told(i); {
		case t[i] == "" || field == ToldRetryAfter:
		case field == ToldRateLimit || field == ToldPolicy:
			for _, line := range theirs(field) {
				if line = strings.TrimSpace(line); line != "" { // a list with an empty item is none
					t[i] += ", " + line
				}
			}
		case keeps:
			t[i] = ""
		}
	}
}

func keepsTheirs(ours int64, yields bool, theirs []string) bool {
	if len(theirs) == 0 || yields {
		return len(theirs) > 0
	}
	remaining, ok := ParseWhole(strings.TrimSpace(theirs[0]))
	return ok && remaining < ours
}
