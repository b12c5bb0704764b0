// SPDX-License-Identifier: Apache-2.0

package core

import "fmt"

var algorithmNames = [...]string{FixedWindow: "fixed_window", SlidingWindow: "sliding_window", SlidingLog: "sliding_log",
	TokenBucket: "token_bucket"}

var algorithmLabels = [...]string{FixedWindow: "fw", SlidingWindow: "sw", SlidingLog: "sl", TokenBucket: "tb"}

// String returns the algorithm's name as policies write it.
func (a Algorithm) String() string {
	if a < FixedWindow || a > TokenBucket {
		return fmt.Sprintf("Algorithm(%d)", uint8(a))
	}
	return algorithmNames[a]
}

// Label returns the two letters that stand for the algorithm in a key.
func (a Algorithm) Label() string { return algorithmLabels[a] }

// String returns the span in its largest whole unit: "500ms", "60s", "86400s".
func (m Micros) String() string {
	switch {
	case m%Second == 0:
		return fmt.Sprintf("%ds", m/Second)
	case m%Millisecond == 0:
		return fmt.Sprintf("%dms", m/Millisecond)
	default:
		return fmt.Sprintf("%dus", int64(m))
	}
}

// ParseLimit reads COUNT/WINDOW [burst N] [ALGORITHM]: "100/1m", "10/1s burst 20", "5000/1d fixed_window". The
// algorithm may be given by its alias; without one it is token_bucket if there is a burst, otherwise sliding_window.
// The error says what is wrong and what to write instead.
func ParseLimit(text string) (Limit, error) { panic("todo") }
