// SPDX-License-Identifier: Apache-2.0

package slim

// numberBytesMax is the greatest length of a number. CountMax has 13 digits, and leading zeros are
// permitted.
const numberBytesMax = 64

// WholeNumber parses a text of decimal digits only. The result ok is false if the number exceeds
// the given maximum. For the cost of strconv.ParseInt, see [ParseWhole]. Price: 26.1 KB.
func WholeNumber(text string, most int64) (n int64, ok bool) {
	if len(text) > numberBytesMax {
		return 0, false
	}
	if n, ok = ParseWhole(text); n > most {
		return 0, false
	}
	return n, ok
}

// Digits returns the leading decimal digits of the text.
func Digits(text string) string {
	n := 0
	for n < len(text) && IsDigit(text[n]) {
		n++
	}
	return text[:n]
}

// IsDigit reports whether the byte is a decimal digit.
func IsDigit(c byte) bool { return c >= '0' && c <= '9' }
