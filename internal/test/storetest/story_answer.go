// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corecounter "github.com/penstock/penstock/core/counter"
)

// storyReader.answer reads (granted N | refused | passes) [remaining N] [violations N] [wait SPAN]
// [reset SPAN] [next SPAN] [leased SPAN] [as NAME].
func (p *storyReader) answer(words []string) (want []Expectation, name string, err error) {
	for len(words) > 0 {
		field := words[0]
		words = words[1:]
		switch field {
		case "refused":
			want = append(want, Expectation{"refused", 1}, Expectation{"granted", 0})
			continue
		case "passes":
			want = append(want, Expectation{"refused", 0}, Expectation{"granted", 0})
			continue
		}
		if len(words) == 0 {
			return nil, "", fmt.Errorf("%s what?", field)
		}
		var value int64
		switch {
		case field == "as":
			name = words[0]
			p.receipts[name] = true
		case slices.Contains([]string{"granted", "remaining", "violations"}, field):
			value, err = strconv.ParseInt(words[0], 10, 64)
		case slices.Contains([]string{"wait", "reset", "next", "leased"}, field):
			var span corecounter.Micros
			span, err = parseSpan(words[0])
			value = int64(span)
		default:
			err = fmt.Errorf("unknown word %q", field)
		}
		if err != nil {
			return nil, "", err
		}
		if field == "granted" {
			want = append(want, Expectation{"refused", 0})
		}
		if field != "as" {
			want = append(want, Expectation{field, value})
		}
		words = words[1:]
	}
	if len(want) == 0 {
		return nil, "", fmt.Errorf("an answer must say something")
	}
	return want, name, nil
}

// parseShift reads the sign + or - followed by a span.
func parseShift(text string) (shift corecounter.Micros, err error) {
	if text == "" || text[0] != '+' && text[0] != '-' {
		return 0, fmt.Errorf("%q: write + or - and a span", text)
	}
	shift, err = parseSpan(text[1:])
	if text[0] == '-' {
		shift = -shift
	}
	return shift, err
}

var spanUnits = map[string]corecounter.Micros{"us": 1, "ms": corecounter.Millisecond, "s": corecounter.Second, "m": corecounter.Minute,
	"h": corecounter.Hour, "d": corecounter.Day}

// parseSpan reads "never", "0", or whole numbers with units, such as "59s", "1m30s" or "2d999us".
func parseSpan(text string) (span corecounter.Micros, err error) {
	switch text {
	case "never":
		return corecounter.Never, nil
	case "0":
		return 0, nil
	case "":
		return 0, fmt.Errorf("a span is missing")
	}
	for rest := text; rest != ""; {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		rest = rest[len(digits):]
		letters := rest[:len(rest)-len(strings.TrimLeft(rest, "usmhd"))]
		rest = rest[len(letters):]
		n, err := strconv.ParseInt(digits, 10, 64)
		unit, ok := spanUnits[letters]
		if err != nil || !ok {
			return 0, fmt.Errorf("span %q: write whole numbers with us, ms, s, m, h or d", text)
		}
		span += corecounter.Micros(n) * unit
	}
	return span, nil
}
