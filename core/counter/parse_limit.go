// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package counter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core/slim"
)

// algorithmWords maps each name that a policy can use for an algorithm to the algorithm.
var algorithmWords = map[string]Algorithm{
	"fixed_window": FixedWindow, "fw": FixedWindow,
	"sliding_window": SlidingWindow, "sw": SlidingWindow, "sliding_window_counter": SlidingWindow,
	"sliding_log": SlidingLog, "sl": SlidingLog,
	"token_bucket": TokenBucket, "tb": TokenBucket,
}

// windowAdvice maps common misspellings of a window to the correct spelling.
var windowAdvice = map[string]string{
	"s": "1s", "sec": "1s", "second": "1s", "m": "1m", "min": "1m", "minute": "1m", "h": "1h", "hr": "1h", "hour": "1h",
	"d": "1d", "ms": "1ms",
}

// limitTextMax bounds the text that ParseLimit reads, and therefore the text that its errors quote.
// The longest valid text has 53 bytes.
const limitTextMax = 128

// ParseLimit parses COUNT/WINDOW [burst N] [ALGORITHM]: "100/1m", "10/1s burst 20", "5000/1d
// fixed_window", "5000/day".
//
// COUNT and N are whole numbers. WINDOW is a whole number and one of the units ms, s, m, h and d,
// between 1ms and 31d; sums like 1h30m are rejected. WINDOW may also be a calendar unit: day, week,
// month or year, whose algorithm is always fixed_window. Leading zeros are rejected, because some
// parsers read 010 as eight.
//
// The algorithm can be an alias. The default is token_bucket if there is a burst, otherwise
// sliding_window. The error states what is wrong and what to write instead.
func ParseLimit(text string) (Limit, error) {
	if len(text) > limitTextMax {
		return Limit{}, fmt.Errorf("limit of %d bytes is too long: write COUNT/WINDOW, for example 100/1m", len(text))
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return Limit{}, fmt.Errorf("limit is empty: write COUNT/WINDOW, for example 100/1m")
	}
	countText, windowText, found := strings.Cut(words[0], "/")
	if !found {
		return Limit{}, fmt.Errorf("%q has no window: write COUNT/WINDOW, for example 100/1m", words[0])
	}
	count, err := parseWhole("count", countText)
	if err != nil {
		return Limit{}, err
	}
	if unit, known := calendarUnit(windowText); known {
		return parseCalendar(count, unit, words[1:])
	}
	window, err := parseWindow(windowText)
	if err != nil {
		return Limit{}, err
	}
	algorithm, burst, err := parseOptions(words[1:])
	if err != nil {
		return Limit{}, err
	}
	return NewLimit(algorithm, count, window, burst)
}

// parseCalendar parses the words after a calendar window: none, or fixed_window.
func parseCalendar(count int64, unit CalendarUnit, words []string) (Limit, error) {
	if len(words) > 0 {
		algorithm, burst, err := parseOptions(words)
		switch {
		case err != nil:
			return Limit{}, err
		case burst != 0:
			return Limit{}, fmt.Errorf("burst %d does not go with the calendar window %q, which is counted as fixed_window: "+
				"leave it out, or write a duration, %s", burst, unit, calendarUnits[unit].nearest)
		case algorithm != FixedWindow:
			return Limit{}, fmt.Errorf("%s does not go with the calendar window %q, which is counted as fixed_window: leave "+
				"it out, or write a duration, %s", algorithm, unit, calendarUnits[unit].nearest)
		}
	}
	return NewCalendarLimit(count, unit)
}

// parseOptions parses [burst N] [ALGORITHM]. The result burst is 0 if the option is absent.
func parseOptions(words []string) (a Algorithm, burst int64, err error) {
	a = SlidingWindow
	if len(words) > 0 && words[0] == "burst" {
		if len(words) == 1 {
			return 0, 0, fmt.Errorf("burst has no number: write burst N, for example burst 20")
		}
		if burst, err = parseWhole("burst", words[1]); err != nil {
			return 0, 0, err
		}
		if burst == 0 {
			return 0, 0, fmt.Errorf("burst 0 lets nothing through: write 1 or more, or leave burst out for one as large as the count")
		}
		a, words = TokenBucket, words[2:]
	}
	if len(words) == 0 {
		return a, burst, nil
	}
	a, known := algorithmWords[words[0]]
	switch {
	case !known:
		return 0, 0, fmt.Errorf("%q is not an algorithm: write fixed_window, sliding_window, sliding_log or token_bucket, "+
			"or burst N before it", words[0])
	case len(words) > 1 && words[1] == "burst":
		return 0, 0, fmt.Errorf("burst follows the algorithm: write burst N %s", words[0])
	case len(words) > 1:
		return 0, 0, fmt.Errorf("%q follows the algorithm, which ends a limit: write several limits as a list", words[1])
	}
	return a, burst, nil
}

// withoutPadding returns the number without leading zeros. The result padded reports whether there
// were any. The result padded is also false for text that is not a number, and for zero, which
// another error reports as out of bounds.
func withoutPadding(number string) (digits string, padded bool) {
	digits = strings.TrimLeft(number, "0")
	return digits, digits != number && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// parseWhole parses digits. A number too large for an int64 exceeds every bound, so parseWhole
// reports it as out of bounds.
func parseWhole(what, text string) (int64, error) {
	if text == "" {
		return 0, fmt.Errorf("%s is missing: write COUNT/WINDOW, for example 100/1m", what)
	}
	if digits, padded := withoutPadding(text); padded {
		return 0, fmt.Errorf("%s %q begins with 0, which some parsers read as octal: write %s", what, text, digits)
	}
	n, ok := slim.ParseWhole(text)
	switch {
	case ok:
		return n, nil
	case strings.Trim(text, "0123456789") == "":
		return 0, fmt.Errorf("%s %s is out of bounds: it must be at most %d", what, text, CountMax)
	}
	return 0, fmt.Errorf("%s %q is not a whole number: write digits only, for example 100", what, text)
}

func parseWindow(text string) (Micros, error) {
	word := strings.ToLower(text)
	advice, known := windowAdvice[word]
	if !known && len(word) > len("ms") { // a plural such as "days"
		advice, known = windowAdvice[strings.TrimSuffix(word, "s")]
	}
	if known {
		return 0, fmt.Errorf("window %q has no number: write %s", text, advice)
	}
	if unit, known := calendarUnit(strings.TrimSuffix(word, "s")); known {
		return 0, fmt.Errorf("window %q is not a calendar window: write %s", text, unit)
	}
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	number, name := text[:digits], text[digits:]
	if number == "" {
		return 0, fmt.Errorf("window %q is not a duration: write a number and ms, s, m, h or d, for example 1m", text)
	}
	if name == "" {
		return 0, fmt.Errorf("window %q has no unit: write %ss, or another of ms, s, m, h and d", text, text)
	}
	for _, unit := range windowUnits {
		if unit.name == name {
			return scaleWindow(text, number, unit.span)
		}
	}
	if unit, known := calendarUnit(strings.TrimSuffix(strings.ToLower(name), "s")); known {
		return 0, fmt.Errorf("window %q has a number before a calendar unit: write %s, or a duration, %s", text, unit,
			calendarUnits[unit].nearest)
	}
	if one := convertToOneUnit(text); one != "" {
		return 0, fmt.Errorf("window %q is not one whole number and one unit of ms, s, m, h and d: write %s", text, one)
	}
	return 0, fmt.Errorf("window %q is not one whole number and one unit of ms, s, m, h and d: write for example 90m", text)
}

// convertToOneUnit converts a sum like 1h30m, a fraction like 1.5h, or a number of weeks to the
// equal window in one unit. convertToOneUnit returns "" if there is no such window.
func convertToOneUnit(text string) string {
	if weeks, ok := strings.CutSuffix(text, "w"); ok {
		n, err := strconv.ParseUint(weeks, 10, 8)
		if window := Micros(n) * 7 * Day; err == nil && window >= WindowMin && window <= WindowMax {
			return windowText(window)
		}
		return ""
	}
	span, err := time.ParseDuration(text)
	window := Micros(span / time.Microsecond)
	if err != nil || window%Millisecond != 0 || window < WindowMin || window > WindowMax {
		return ""
	}
	return windowText(window)
}

func scaleWindow(text, number string, span Micros) (Micros, error) {
	if digits, padded := withoutPadding(number); padded {
		return 0, fmt.Errorf("window %q begins with 0, which some parsers read as octal: write %s", text,
			digits+text[len(number):])
	}
	n, ok := slim.ParseWhole(number)
	if !ok || n > int64(WindowMax/span) || Micros(n)*span < WindowMin {
		longer := ""
		if n != 0 {
			longer = ", or month or year, which are the calendar's"
		}
		return 0, fmt.Errorf("window %s is out of bounds: it must be between 1ms and 31d%s", text, longer)
	}
	return Micros(n) * span, nil
}
