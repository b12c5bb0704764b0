// SPDX-License-Identifier: Apache-2.0

package slim

// LowerASCII returns the text with ASCII letters in lower case. LowerASCII is meant for schemes and
// header names, which are ASCII. [strings.ToLower] handles all letters. Price: 10.9 KB.
func LowerASCII(text string) string { return changeCase(text, 'A') }

// EqualASCII reports whether two texts are equal when the case of ASCII letters is ignored.
// [strings.EqualFold] handles all letters. Price: 2.1 KB.
func EqualASCII(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if LowerByte(a[i]) != LowerByte(b[i]) {
			return false
		}
	}
	return true
}

// UpperASCII returns the text with ASCII letters in upper case. [strings.ToUpper] handles all
// letters. Price: 10.8 KB.
func UpperASCII(text string) string { return changeCase(text, 'a') }

// changeCase changes the case of one of the ranges A to Z and a to z. Its argument is the first
// letter of the range.
//
//go:noinline
func changeCase(text string, first byte) string {
	for i := range len(text) {
		if text[i]-first < 26 {
			changed := []byte(text)
			for ; i < len(changed); i++ {
				if changed[i]-first < 26 {
					changed[i] ^= 'a' - 'A'
				}
			}
			return string(changed)
		}
	}
	return text
}

// LowerByte returns the ASCII letter in lower case, and any other byte unchanged.
func LowerByte(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c | 0x20
	}
	return c
}

// UpperByte returns the ASCII letter in upper case, and any other byte unchanged.
func UpperByte(c byte) byte {
	if c >= 'a' && c <= 'z' {
		return c &^ 0x20
	}
	return c
}
