// SPDX-License-Identifier: Apache-2.0

package identify

import "strings"

// Some servers read a parameter or cookie under other names too. A credential under such a name is
// malformed. If it counted as absent, on_invalid would not apply to it, and the upstream would see
// a client that Penstock does not see.

// The function resembles reports whether some servers read the text as the name: without leading
// spaces or "?", in any case (ASP.NET), with ".", " " or "[" for "_" (PHP), or as an element of a
// list (PHP, Express). Cookies that differ in case are different cookies.
//
//go:noinline
func resembles(text, name string, anyCase bool) bool {
	begun := false
	for text != "" {
		c, size := formByte(text)
		if size == 0 { // an invalid escape stays as it is
			c, size = text[0], 1
		}
		text = text[size:]
		if !begun && (c == ' ' || c == '?') {
			continue
		}
		begun = true
		if name == "" {
			return c == '[' || c == 0
		}
		if unifyByte(c, anyCase) != unifyByte(name[0], anyCase) {
			return false
		}
		name = name[1:]
	}
	return name == ""
}

// unifyByte maps all bytes that servers treat as equal in a name to one byte.
func unifyByte(c byte, anyCase bool) byte {
	switch {
	case c == '.', c == ' ', c == '[':
		return '_'
	case anyCase && c >= 'A' && c <= 'Z':
		return c | 0x20
	}
	return c
}

// behindSemicolon reports whether a part of a query between two "&" contains the parameter after a
// ";", which some servers treat as a separator.
func behindSemicolon(pair, name string) bool {
	_, pair, _ = strings.Cut(pair, ";")
	for pair != "" {
		var part string
		part, pair, _ = strings.Cut(pair, ";")
		if key, text, _ := strings.Cut(part, "="); text != "" && resembles(key, name, true) {
			return true
		}
	}
	return false
}
