// SPDX-License-Identifier: Apache-2.0

package core

import "math"

// ParseWhole reads a whole number of decimal digits and nothing else: no sign, no space. ok is false for anything but that, and for
// what is more than an int64. It is in place of strconv.ParseInt on the way of a request: that one's errors quote what they could not
// read, and the tables of what can be printed are a part of the filter in Envoy that nobody would ever see.
func ParseWhole[T ~string | ~[]byte](text T) (n int64, ok bool) {
	for i := range len(text) {
		digit := text[i] - '0'
		if digit > 9 || n > (math.MaxInt64-int64(digit))/10 {
			return 0, false
		}
		n = n*10 + int64(digit)
	}
	return n, len(text) > 0
}
