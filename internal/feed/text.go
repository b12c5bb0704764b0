// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"crypto/sha256"
	"encoding/hex"
	"unicode"
	"unicode/utf8"
)

const (
	// TextBytesMost bounds each text of a line.
	TextBytesMost = 512
	// nodeBytesMost bounds the name of a node.
	nodeBytesMost = 255
	// digestBytes is the length of the hash that ends a text that was cut.
	digestBytes = 8
	ellipsis    = "…"
)

// escape is the first character of the escape of a byte. Two hexadecimal digits follow.
const escape = utf8.RuneError

// Escape returns a text as a row of the control plane can have it: UTF-8 without control
// characters, of at most TextBytesMost bytes. A byte of anything else becomes U+FFFD and two
// hexadecimal digits, and so does each byte of a U+FFFD. So different texts have different escapes.
// A result that would be longer is cut, and ends in … and 16 digits of a hash of the text.
func Escape(text string) string { return fit(text, TextBytesMost, true) }

// Fit is like [Escape], for texts that a node has escaped: U+FFFD stays as it is.
func Fit(text string) string { return fit(text, TextBytesMost, false) }

func fit(text string, most int, doubled bool) string {
	if len(text) <= most && isPlain(text, doubled) {
		return text
	}
	const cutBytes = len(ellipsis) + 2*digestBytes
	out, whole := make([]byte, 0, most), 0 // whole is where the text is cut if it is too long
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		before := len(out)
		if isPlainRune(r, size, doubled) {
			out = append(out, text[i:i+size]...)
		} else {
			for _, c := range []byte(text[i : i+size]) {
				out = hex.AppendEncode(utf8.AppendRune(out, escape), []byte{c})
			}
		}
		if before <= most-cutBytes {
			whole = before
		}
		if len(out) > most {
			digest := sha256.Sum256([]byte(text))
			return string(hex.AppendEncode(append(out[:whole], ellipsis...), digest[:digestBytes]))
		}
		i += size
	}
	return string(out)
}

// isPlain reports whether a row can have each character of a text as it is.
func isPlain(text string, doubled bool) bool {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if !isPlainRune(r, size, doubled) {
			return false
		}
		i += size
	}
	return true
}

// isPlainRune reports whether a row can have a character as it is.
func isPlainRune(r rune, size int, doubled bool) bool {
	if r == utf8.RuneError {
		return size > 1 && !doubled
	}
	return !unicode.IsControl(r)
}
