// SPDX-License-Identifier: Apache-2.0

package core

// LowerASCII returns the text with ASCII letters in lower case: of schemes and names of headers, which are nothing else. The
// library's function, which knows all letters, is 15 KB of a filter.
func LowerASCII(text string) string { return changeCase(text, 'A') }

// equalASCII reports whether two texts are the same but for the case of their letters.
func equalASCII(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lowerByte(a[i]) != lowerByte(b[i]) {
			return false
		}
	}
	return true
}

func upperASCII(text string) string { return changeCase(text, 'a') }

// changeCase changes the letters from first on to those of the other case.
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
