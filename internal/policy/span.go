// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // containers often have no time zones

	"github.com/penstock/penstock/core"
)

// spanUnits are the units of a duration, longest first, as those of a limit's window.
var spanUnits = [...]struct {
	name string
	span core.Micros
}{{"d", core.Day}, {"h", core.Hour}, {"m", core.Minute}, {"s", core.Second}, {"ms", core.Millisecond}}

// Span reads a duration as policies write it: a whole number and one unit of ms, s, m, h and d. No text is 0. The error
// says what to write.
func Span(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	span, err := parseSpan(text)
	return time.Duration(span) * time.Microsecond, err
}

func parseSpan(text string) (core.Micros, error) {
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
		if n > int64(core.FillMax/u.span) { // longer than any word takes
			return 0, fmt.Errorf("is longer than %s", spanText(core.FillMax))
		}
		return core.Micros(n) * u.span, nil
	}
	if unit == "" {
		return 0, fmt.Errorf("has no unit: write %ss, or another of ms, s, m, h and d", number)
	}
	return 0, fmt.Errorf("has an unknown unit: write one of ms, s, m, h and d")
}

// spanText writes a span in the largest unit that is whole.
func spanText(span core.Micros) string {
	for _, u := range spanUnits {
		if span != 0 && span%u.span == 0 {
			return fmt.Sprintf("%d%s", span/u.span, u.name)
		}
	}
	return span.String()
}
