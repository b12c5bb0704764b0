// SPDX-License-Identifier: Apache-2.0

package identify

import "strings"

// Some servers read a parameter or cookie under other names too. A credential under such a name is
// malformed. If such a credential counted as absent, on_invalid would not apply to it, and the
// upstream would see a client that Penstock does not see.

// resemblesName reports whether some servers read the text as the name. Such servers
// drop surrounding characters, ignore case (ASP.NET), replace ".", " " or "[" by "_" (PHP), or read
// an element of a list (PHP, Express). Cookies that differ in case are different cookies.
//
//go:noinline
func resemblesName(text, name string, anyCase bool) bool {
	if beginsWithName(text, name, anyCase) {
		return true
	}
	inner := text
	for inner != "" {
		c, size := nameByte(inner)
		if !isPadding(c) && c != '?' && c != '[' && c != ']' {
			break
		}
		inner = inner[size:]
	}
	return len(inner) < len(text) && beginsWithName(inner, name, anyCase)
}

// beginsWithName reports whether the text is the name, or the name followed by
// padding, an index of a list or a zero byte.
func beginsWithName(text, name string, anyCase bool) bool {
	for text != "" {
		c, size := nameByte(text)
		if name == "" {
			if c == '[' || c == ']' || c == 0 {
				return true
			}
			if !isPadding(c) {
				return false
			}
		} else if unifyByte(c, anyCase) != unifyByte(name[0], anyCase) {
			return false
		} else {
			name = name[1:]
		}
		text = text[size:]
	}
	return name == ""
}

// nameByte is like formByte, but returns the "%" of an invalid escape as it is.
func nameByte(text string) (c byte, size int) {
	if c, size = formByte(text); size == 0 {
		return text[0], 1
	}
	return c, size
}

// isPadding reports whether some server removes the byte from the ends of a name: white space of
// ASCII, Latin-1 and Unicode (Python, JavaScript), control characters and quotes.
func isPadding(c byte) bool {
	return c <= ' ' || c >= 0x7f || c == '"' || c == '\''
}

// hidesCookie reports whether some servers find the cookie within the text between two ";": behind
// white space (http.cookies of Python, aiohttp) or a comma (ASP.NET Core).
//
//go:noinline
func hidesCookie(text, name string) bool {
	for {
		before, after, _ := strings.Cut(text, "=")
		if after == "" {
			return false
		}
		end := len(before)
		for end > 0 && separatesCookies(before[end-1]) {
			end--
		}
		start := end
		for start > 0 && !separatesCookies(before[start-1]) {
			start--
		}
		if start > 0 && resemblesName(before[start:end], name, false) {
			return true
		}
		text = after
	}
}

func separatesCookies(c byte) bool { return c <= ' ' || c >= 0x7f || c == ',' }

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

// hasSemicolonParameter reports whether a part of a query between two "&" contains the parameter
// after a ";", which some servers treat as a separator.
func hasSemicolonParameter(pair, name string) bool {
	_, pair, _ = strings.Cut(pair, ";")
	for pair != "" {
		var part string
		part, pair, _ = strings.Cut(pair, ";")
		if key, text, _ := strings.Cut(part, "="); text != "" && resemblesName(key, name, true) {
			return true
		}
	}
	return false
}
