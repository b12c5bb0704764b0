// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// escapes are what the letters behind a backslash stand for, in pairs.
const escapes = "\"\"\\\\//b\bf\fn\nr\rt\t"

// unescaped returns the member's name that is written so, without its quotes. The scanner has seen that the escapes are
// whole. What is no text, such as half a surrogate pair, becomes U+FFFD, as it does everywhere in Go.
func unescaped(written []byte) string {
	name := make([]byte, 0, len(written))
	for len(written) > 0 {
		switch {
		case written[0] != '\\':
			r, size := utf8.DecodeRune(written)
			name, written = utf8.AppendRune(name, r), written[size:]
		case written[1] != 'u':
			name = append(name, escapes[2*(strings.IndexByte("\"\\/bfnrt", written[1]))+1])
			written = written[2:]
		default:
			r := hexRune(written)
			written = written[6:]
			if utf16.IsSurrogate(r) {
				pair := utf16.DecodeRune(r, hexRune(written))
				if r = pair; pair != utf8.RuneError {
					written = written[6:]
				}
			}
			name = utf8.AppendRune(name, r)
		}
	}
	return string(name)
}

// hexRune returns what an escape of the form \u0000 stands for; it is no rune if there is no such escape.
func hexRune(written []byte) (r rune) {
	if len(written) < 6 || written[0] != '\\' || written[1] != 'u' {
		return utf8.RuneError
	}
	for _, c := range written[2:6] {
		r = r<<4 | rune(c&0xf)
		if c > '9' {
			r += 9
		}
	}
	return r
}
