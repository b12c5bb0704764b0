// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strconv"
	"strings"
)

// number is a pattern for an integer, {LOW..HIGH} or {EXACT=LOW..HIGH}. Each of the three is a
// number, or an instant of the form now+N.
type number struct {
	low, high, exact instant
	// pinned reports whether the pattern has an exact number. It is compared only with answers
	// whose Exact is set.
	pinned bool
}

// instant is a number. If the field since is true, it is a number of seconds after the front's
// decision.
type instant struct {
	n     int64
	since bool
}

// mismatch returns the reason why the text does not match a pattern, or "" if it does. A pattern is
// text that may contain patterns for numbers.
func mismatch(pattern, text string, a *Answer) string {
	for {
		plain, rest, more := cutNumber(pattern)
		after, ok := strings.CutPrefix(text, plain)
		if !ok || !more && after != "" {
			return "it differs"
		}
		if !more {
			return ""
		}
		braces, tail, _ := strings.Cut(rest, "}")
		want, err := parseNumber(braces)
		if err != nil {
			return err.Error()
		}
		end := 0
		for end < len(after) && (after[end] >= '0' && after[end] <= '9') {
			end++
		}
		got, err := strconv.ParseInt(after[:end], 10, 64)
		if err != nil {
			return "no number where one belongs"
		}
		if why := want.holds(got, a); why != "" {
			return why
		}
		pattern, text = tail, after[end:]
	}
}

// cutNumber cuts a pattern at its first number. Only a brace before a digit or the letter n begins
// a number, because other braces are JSON.
func cutNumber(pattern string) (plain, rest string, found bool) {
	for i := 0; i+1 < len(pattern); i++ {
		if c := pattern[i+1]; pattern[i] == '{' && (c >= '0' && c <= '9' || c == 'n') {
			return pattern[:i], pattern[i+1:], true
		}
	}
	return pattern, "", false
}

func parseNumber(text string) (n number, err error) {
	bounds := text
	if exact, rest, ok := strings.Cut(text, "="); ok {
		n.pinned, bounds = true, rest
		if n.exact, err = parseInstant(exact); err != nil {
			return n, err
		}
	}
	low, high, ok := strings.Cut(bounds, "..")
	if !ok {
		return n, fmt.Errorf("%q is not LOW..HIGH", bounds)
	}
	if n.low, err = parseInstant(low); err != nil {
		return n, err
	}
	n.high, err = parseInstant(high)
	return n, err
}

func parseInstant(text string) (i instant, err error) {
	text, i.since = strings.CutPrefix(text, "now+")
	i.n, err = strconv.ParseInt(text, 10, 64)
	return i, err
}

// number.holds returns the reason why the number named got does not match the pattern, or "" if it
// does. Some fronts truncate seconds and others round them up, so the bounds of instants are
// widened by a second.
func (n *number) holds(got int64, a *Answer) string {
	if n.pinned && a.Exact {
		if want := n.exact.after(a.Since, 0); got != want {
			return fmt.Sprintf("%d is not %d", got, want)
		}
	}
	low, high := n.low.after(a.Since, -1), n.high.after(a.Until, 1)
	if got < low || got > high {
		return fmt.Sprintf("%d is not in %d..%d", got, low, high)
	}
	return ""
}

func (i instant) after(now, play int64) int64 {
	if i.since {
		return now + i.n + play
	}
	return i.n
}
