// SPDX-License-Identifier: Apache-2.0

package counter

import "strconv"

var algorithmNames = [...]string{FixedWindow: "fixed_window", SlidingWindow: "sliding_window", SlidingLog: "sliding_log",
	TokenBucket: "token_bucket"}

var algorithmLabels = [...]string{FixedWindow: "fw", SlidingWindow: "sw", SlidingLog: "sl", TokenBucket: "tb"}

// windowUnits are the units of a window, longest first.
var windowUnits = [...]struct {
	name string
	span Micros
}{{"d", Day}, {"h", Hour}, {"m", Minute}, {"s", Second}, {"ms", Millisecond}}

// String returns the algorithm's name as policies write it.
func (a Algorithm) String() string {
	if a < FixedWindow || a > TokenBucket {
		return "Algorithm(" + strconv.Itoa(int(a)) + ")"
	}
	return algorithmNames[a]
}

// Label returns the two letters that stand for the algorithm in a key.
func (a Algorithm) Label() string { return algorithmLabels[a] }

// String returns the span in the largest of s, ms and us that divides it: "500ms", "86400s".
func (m Micros) String() string {
	switch {
	case m%Second == 0:
		return decimal(int64(m/Second)) + "s"
	case m%Millisecond == 0:
		return decimal(int64(m/Millisecond)) + "ms"
	default:
		return decimal(int64(m)) + "us"
	}
}

// windowText returns a window as policies write it, in the largest unit that divides it: "1d",
// "90s", "500ms".
func windowText(window Micros) string {
	for _, unit := range windowUnits {
		if window%unit.span == 0 {
			return strconv.FormatInt(int64(window/unit.span), 10) + unit.name
		}
	}
	return window.String()
}

// WindowName returns the limit's window as policies write it: "1m", "day".
func (l *Limit) WindowName() string {
	if l.calendar != 0 {
		return l.calendar.String()
	}
	return windowText(l.window)
}

// String returns the limit as policies write it, in the shortest form: "100/1m", "10/1s burst 20",
// "5000/1d fixed_window", "5000/day". [ParseLimit] parses it back to an equal limit if the window
// is a whole number of milliseconds. That is true of every window that ParseLimit returns.
func (l Limit) String() string {
	text := strconv.FormatInt(l.count, 10) + "/" + l.WindowName()
	switch {
	case l.algorithm == SlidingWindow || l.calendar != 0:
		return text
	case l.algorithm == TokenBucket && l.burst != l.count:
		return text + " burst " + strconv.FormatInt(l.burst, 10)
	default:
		return text + " " + l.algorithm.String()
	}
}

// SameCounter returns the index of the first limit before limits[i] that would share a counter with
// it, or -1 if there is none.
func SameCounter(limits []Limit, i int) int {
	tail := KeyTail(&limits[i])
	for j := range i {
		if limits[j].algorithm != 0 && KeyTail(&limits[j]) == tail {
			return j
		}
	}
	return -1
}

// KeyTail returns the suffix of a limit's keys. Limits of one rule with the same suffix share their
// counters.
func KeyTail(l *Limit) string { return ":" + l.WindowLabel() + ":" + l.algorithm.Label() }
