// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"unicode/utf8"

	"github.com/penstock/penstock/core/slim"
)

// JSONDepthMax is the greatest depth of nested JSON in a policy. Some clients cannot read deeper
// JSON.
const JSONDepthMax = 64

// ValidJSON reports whether the text is one JSON value (RFC 8259), nested at most JSONDepthMax
// deep.
func ValidJSON(text string) bool {
	j := jsonText{text}
	j.space()
	return utf8.ValidString(text) && j.value(JSONDepthMax) && j.rest == ""
}

// jsonText is the rest of a JSON text. Each method consumes the element that it is named after,
// including the white space after it. The result reports whether the element was present.
type jsonText struct{ rest string }

//go:noinline
func (j *jsonText) space() {
	for j.rest != "" && (j.rest[0] == ' ' || j.rest[0] == '\t' || j.rest[0] == '\n' || j.rest[0] == '\r') {
		j.rest = j.rest[1:]
	}
}

// consumeByte consumes one byte.
func (j *jsonText) consumeByte(c byte) bool {
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
		return j.list('{', '}', func() bool { return j.string() && j.consumeByte(':') && j.value(depth-1) })
	case j.rest[0] == '[':
		return j.list('[', ']', func() bool { return j.value(depth - 1) })
	case j.rest[0] == '"':
		return j.string()
	default:
		return j.word("true") || j.word("false") || j.word("null") || j.number()
	}
}

// jsonText.list consumes items between brackets, separated by commas.
func (j *jsonText) list(opening, closing byte, item func() bool) bool {
	if !j.consumeByte(opening) {
		return false
	}
	if j.consumeByte(closing) {
		return true
	}
	for item() {
		if j.consumeByte(closing) {
			return true
		}
		if !j.consumeByte(',') {
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

// escapeBytes returns the length of the escape at the start of the text, or 0 if there is none.
func escapeBytes(text string) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		for i := 2; i < 6; i++ {
			if i >= len(text) || !slim.IsHex(text[i]) {
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
	whole := slim.Digits(rest)
	if whole == "" || len(whole) > 1 && whole[0] == '0' {
		return false
	}
	rest = rest[len(whole):]
	if rest != "" && rest[0] == '.' {
		fraction := slim.Digits(rest[1:])
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
		exponent := slim.Digits(rest)
		if exponent == "" {
			return false
		}
		rest = rest[len(exponent):]
	}
	j.rest = rest
	j.space()
	return true
}
