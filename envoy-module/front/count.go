// SPDX-License-Identifier: Apache-2.0

package front

import "github.com/penstock/penstock/core"

// Count names the counter of Envoy that counts a request.
type Count uint8

// The counters, in the order in which package abi names them.
const (
	CountNone Count = iota // a request that was not decided
	CountAllowed
	CountDenied
	CountDegraded    // allowed by on_error
	CountUnavailable // denied by on_error, or because too many wait
	CountOversized
	CountInvalidTarget
	CountPanic
)

// countOf returns which of the filter's counters counts a decision.
func countOf(d *core.Decision) Count {
	switch d.Outcome {
	case core.OutcomeDegradedAllowed, core.OutcomeDegradedLocal:
		return CountDegraded
	case core.OutcomeDegradedDenied:
		return CountUnavailable
	case core.OutcomeOversized:
		return CountOversized
	}
	if d.Denied() {
		return CountDenied
	}
	return CountAllowed
}

// Counted returns which of the filter's counters counts the request. The request must be decided.
func (s *Stream) Counted() Count {
	switch {
	case !s.late:
		return s.counted
	case s.Woken() == Respond:
		return CountUnavailable
	}
	return CountDegraded
}
