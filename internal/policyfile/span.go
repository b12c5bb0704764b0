// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // containers often have no time zones

	"github.com/penstock/penstock/core/counter"
)

// spanUnits are the units of a duration, longest first. The windows of limits are
// written with the same units of time.
var spanUnits = [...]struct {
	name string
	span counter.Micros
}{{"d", counter.Day}, {"h", counter.Hour}, {"m", counter.Minute}, {"s", counter.Second}, {"ms", counter.Millisecond}}

// Span reads a duration of a policy: a whole number and one of the units ms, s, m, h and d. An
// empty text is 0. The error states the valid form.
func Span(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	span, err := parseSpan(text)
	return time.Duration(span) * time.Microsecond, err
}

func parseSpan(text string) (counter.Micros, error) {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || number != strconv.FormatInt(n, 10) || n < 0 {
		return 0, fmt.Errorf("is not one whole number and one unit: write for example 30s, 90m or 500ms")
	}
	unit := text[len(number):]
	for _, u := range spanUnits {
		if u.name != unit {
			continue
		}
		if n > int64(counter.FillMax/u.span) { // longer than any field allows
			return 0, fmt.Errorf("is longer than %s", SpanText(counter.FillMax))
		}
		return counter.Micros(n) * u.span, nil
	}
	if unit == "" {
		return 0, fmt.Errorf("has no unit: write %ss, or another of ms, s, m, h and d", number)
	}
	return 0, fmt.Errorf("has an unknown unit: write one of ms, s, m, h and d")
}

// SpanText writes a span in the largest unit that divides it.
func SpanText(span counter.Micros) string {
	for _, u := range spanUnits {
		if span != 0 && span%u.span == 0 {
			return fmt.Sprintf("%d%s", span/u.span, u.name)
		}
	}
	return span.String()
}
