// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// escapes lists, in pairs, each letter after a backslash and the character that it
// stands for.
const escapes = "\"\"\\\\//b\bf\fn\nr\rt\t"

// unescapeName decodes the escapes of a member's name, whose quotes have been removed. The scanner
// has checked that the escapes are complete. Invalid text, such as half a surrogate pair, becomes
// U+FFFD, as everywhere in Go.
func unescapeName(written []byte) string {
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

// hexRune decodes an escape of the form \u0000. hexRune returns utf8.RuneError if the text does not
// begin with one.
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
