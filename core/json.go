// SPDX-License-Identifier: Apache-2.0

package core

import "unicode/utf8"

// JSON as far as refusals need it: texts are written into problem documents, and a policy's own bodies are checked. The
// package encoding/json is not for core: it brings reflection into every filter.

// jsonDepthMax is how deep a policy's JSON may be nested: deeper ones are refused, for some clients cannot read them.
const jsonDepthMax = 64

// appendJSON appends the text as the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendJSON(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	for _, r := range text { // an invalid byte is ranged over as U+FFFD
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// Quoted returns the text in quotes for an error, without line feeds and control characters of ASCII. It is in place of strconv.Quote where the filter in Envoy may say
// so: the tables of what can be printed are 14 KB of it.
func Quoted(text string) string { return string(append(appendJSON([]byte{'"'}, text), '"')) }

// validJSON reports whether the text is one JSON value (RFC 8259), nested at most jsonDepthMax deep.
func validJSON(text string) bool {
	j := jsonText{text}
	j.space()
	return utf8.ValidString(text) && j.value(jsonDepthMax) && j.rest == ""
}

// jsonText is what is left to read of a JSON text. Each method takes what it is called after, with the white space
// behind it, and reports whether it was there.
type jsonText struct{ rest string }

//go:noinline
func (j *jsonText) space() {
	for j.rest != "" && (j.rest[0] == ' ' || j.rest[0] == '\t' || j.rest[0] == '\n' || j.rest[0] == '\r') {
		j.rest = j.rest[1:]
	}
}

// byte takes one byte.
func (j *jsonText) byte(c byte) bool {
	if j.rest == "" || j.rest[0] != c {
		return false
	}
	j.rest = j.rest[1:]
	j.space()
	return true
}

func (j *jsonText) word(w string) bool {
	if len(j.rest) < len(w) || j.rest[:len(w)] != w {
		return false
	}
	j.rest = j.rest[len(w):]
	j.space()
	return true
}

func (j *jsonText) value(depth int) bool {
	switch {
	case j.rest == "" || depth == 0:
		return false
	case j.rest[0] == '{':
		return j.list('{', '}', func() bool { return j.string() && j.byte(':') && j.value(depth-1) })
	case j.rest[0] == '[':
		return j.list('[', ']', func() bool { return j.value(depth - 1) })
	case j.rest[0] == '"':
		return j.string()
	default:
		return j.word("true") || j.word("false") || j.word("null") || j.number()
	}
}

// list takes items between brackets, with commas between them.
func (j *jsonText) list(opening, closing byte, item func() bool) bool {
	if !j.byte(opening) {
		return false
	}
	if j.byte(closing) {
		return true
	}
	for item() {
		if j.byte(closing) {
			return true
		}
		if !j.byte(',') {
			return false
		}
	}
	return false
}

func (j *jsonText) string() bool {
	if j.rest == "" || j.rest[0] != '"' {
		return false
	}
	for i := 1; i < len(j.rest); i++ {
		switch c := j.rest[i]; {
		case c == '"':
			j.rest = j.rest[i+1:]
			j.space()
			return true
		case c < ' ':
			return false
		case c == '\\':
			n := escapeBytes(j.rest[i:])
			if n == 0 {
				return false
			}
			i += n - 1
		}
	}
	return false
}

// escapeBytes returns how long the escape is that the text begins with, 0 if it is none.
func escapeBytes(text string) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		for i := 2; i < 6; i++ {
			if i >= len(text) || !isHex(text[i]) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func (j *jsonText) number() bool {
	rest := j.rest
	if rest != "" && rest[0] == '-' {
		rest = rest[1:]
	}
	whole := digits(rest)
	if whole == "" || len(whole) > 1 && whole[0] == '0' {
		return false
	}
	rest = rest[len(whole):]
	if rest != "" && rest[0] == '.' {
		fraction := digits(rest[1:])
		if fraction == "" {
			return false
		}
		rest = rest[1+len(fraction):]
	}
	if rest != "" && (rest[0] == 'e' || rest[0] == 'E') {
		rest = rest[1:]
		if rest != "" && (rest[0] == '+' || rest[0] == '-') {
			rest = rest[1:]
		}
		exponent := digits(rest)
		if exponent == "" {
			return false
		}
		rest = rest[len(exponent):]
	}
	j.rest = rest
	j.space()
	return true
}
