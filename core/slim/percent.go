// SPDX-License-Identifier: Apache-2.0

package slim

// UpperHex holds the hexadecimal digits in upper case.
const UpperHex = "0123456789ABCDEF"

// Unescape returns the byte that the percent escape at s[i] encodes.
func Unescape(s string, i int) (b byte, ok bool) {
	if i+2 >= len(s) {
		return 0, false
	}
	high, low := HexValue(s[i+1]), HexValue(s[i+2])
	return high<<4 | low, high|low < 16
}

// IsHex reports whether the byte is a hexadecimal digit.
func IsHex(c byte) bool { return HexValue(c) < 16 }

// HexValue returns the value of a hexadecimal digit, or 16 for any other byte.
func HexValue(c byte) byte { return hexValues[c] }

var hexValues = func() (values [256]byte) {
	for c := range values {
		values[c] = 16
	}
	for value := range byte(16) {
		digit := UpperHex[value]
		values[digit], values[LowerByte(digit)] = value, value
	}
	return values
}()
