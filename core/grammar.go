// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

var algorithmNames = [...]string{FixedWindow: "fixed_window", SlidingWindow: "sliding_window", SlidingLog: "sliding_log",
	TokenBucket: "token_bucket"}

var algorithmLabels = [...]string{FixedWindow: "fw", SlidingWindow: "sw", SlidingLog: "sl", TokenBucket: "tb"}

// algorithmWords are all the words a policy may use for an algorithm.
var algorithmWords = map[string]Algorithm{
	"fixed_window": FixedWindow, "fw": FixedWindow,
	"sliding_window": SlidingWindow, "sw": SlidingWindow, "sliding_window_counter": SlidingWindow,
	"sliding_log": SlidingLog, "sl": SlidingLog,
	"token_bucket": TokenBucket, "tb": TokenBucket,
}

// windowUnits are the units of a window, longest first.
var windowUnits = [...]struct {
	name string
	span Micros
}{{"d", Day}, {"h", Hour}, {"m", Minute}, {"s", Second}, {"ms", Millisecond}}

// windowAdvice holds the words people write for a window, and what to write instead.
var windowAdvice = map[string]string{
	"s": "1s", "sec": "1s", "second": "1s", "m": "1m", "min": "1m", "minute": "1m", "h": "1h", "hr": "1h", "hour": "1h",
	"d": "1d", "ms": "1ms",
}

// limitTextMax bounds what ParseLimit reads, and so what its errors quote: the longest valid text has 53 bytes.
const limitTextMax = 128

// String returns the algorithm's name as policies write it.
func (a Algorithm) String() string {
	if a < FixedWindow || a > TokenBucket {
		return "Algorithm(" + strconv.Itoa(int(a)) + ")"
	}
	return algorithmNames[a]
}

// Label returns the two letters that stand for the algorithm in a key.
func (a Algorithm) Label() string { return algorithmLabels[a] }

// String returns the span in its largest whole unit: "500ms", "60s", "86400s".
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

// windowText returns a window as policies write it, in the largest unit that is whole: "1d", "90s", "500ms".
func windowText(window Micros) string {
	for _, unit := range windowUnits {
		if window%unit.span == 0 {
			return strconv.FormatInt(int64(window/unit.span), 10) + unit.name
		}
	}
	return window.String()
}

// windowName returns the limit's window as policies write it: "1m", "day".
func (l *Limit) windowName() string {
	if l.calendar != 0 {
		return l.calendar.String()
	}
	return windowText(l.window)
}

// String returns the limit as policies write it, in the shortest form: "100/1m", "10/1s burst 20", "5000/1d
// fixed_window", "5000/day". [ParseLimit] reads it back to an equal limit if the window is a whole number of milliseconds, as every
// window that ParseLimit has read is.
func (l Limit) String() string {
	text := strconv.FormatInt(l.count, 10) + "/" + l.windowName()
	switch {
	case l.algorithm == SlidingWindow || l.calendar != 0:
		return text
	case l.algorithm == TokenBucket && l.burst != l.count:
		return text + " burst " + strconv.FormatInt(l.burst, 10)
	default:
		return text + " " + l.algorithm.String()
	}
}

// ParseLimit reads COUNT/WINDOW [burst N] [ALGORITHM]: "100/1m", "10/1s burst 20", "5000/1d fixed_window", "5000/day".
// COUNT and N are whole numbers. WINDOW is a whole number and one unit of ms, s, m, h and d, between 1ms and 31d; sums like
// 1h30m are not read. Or it is a calendar's: day, week, month or year, and the algorithm then fixed_window. No number has
// zeros in front, because some readers take 010 for eight. The algorithm may be given by its alias; without one it is
// token_bucket if there is a burst, otherwise sliding_window. The error says what is wrong and what to write instead.
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

// parseCalendar reads what follows a calendar window: nothing, or fixed_window.
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

// parseOptions reads [burst N] [ALGORITHM]; burst is 0 if there is none.
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
		return 0, 0, fmt.Errorf("burst stands after the algorithm: write burst N %s", words[0])
	case len(words) > 1:
		return 0, 0, fmt.Errorf("%q stands after the algorithm: a limit ends there, write several limits as a list", words[1])
	}
	return a, burst, nil
}

// unpadded returns the number without the zeros in front of it; padded is false if there are none, and for what is no number
// but 0, which is out of every bound however it is written.
func unpadded(number string) (digits string, padded bool) {
	digits = strings.TrimLeft(number, "0")
	return digits, digits != number && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// parseWhole reads digits. What is too large for an int64 is out of every bound, so it gets the bound's message.
func parseWhole(what, text string) (int64, error) {
	if text == "" {
		return 0, fmt.Errorf("%s is missing: write COUNT/WINDOW, for example 100/1m", what)
	}
	if digits, padded := unpadded(text); padded {
		return 0, fmt.Errorf("%s %q begins with 0, and some readers take that for base eight: write %s", what, text, digits)
	}
	n, ok := ParseWhole(text)
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
	if !known && len(word) > len("ms") { // a plural
		advice, known = windowAdvice[strings.TrimSuffix(word, "s")]
	}
	if known {
		return 0, fmt.Errorf("window %q has no number: write %s", text, advice)
	}
	if unit, known := calendarUnit(strings.TrimSuffix(word, "s")); known {
		return 0, fmt.Errorf("window %q is no calendar window: write %s", text, unit)
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
	if one := inOneUnit(text); one != "" {
		return 0, fmt.Errorf("window %q is not one whole number and one unit of ms, s, m, h and d: write %s", text, one)
	}
	return 0, fmt.Errorf("window %q is not one whole number and one unit of ms, s, m, h and d: write for example 90m", text)
}

// inOneUnit returns the window that is meant by a sum like 1h30m, a fraction like 1.5h, or weeks; "" if there is none.
func inOneUnit(text string) string {
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
	if digits, padded := unpadded(number); padded {
		return 0, fmt.Errorf("window %q begins with 0, and some readers take that for base eight: write %s", text,
			digits+text[len(number):])
	}
	n, ok := ParseWhole(number)
	if !ok || n > int64(WindowMax/span) || Micros(n)*span < WindowMin {
		longer := ""
		if n != 0 {
			longer = ", or month or year, which are the calendar's"
		}
		return 0, fmt.Errorf("window %s is out of bounds: it must be between 1ms and 31d%s", text, longer)
	}
	return Micros(n) * span, nil
}
