// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// objectDepthMax is the greatest nesting depth of claims. Real claims have three levels.
	objectDepthMax = 16
	// headerValuesMax is the greatest number of values in a token's header, including those in
	// lists and objects. RFC 7515 defines eleven members. One of them is a list of certificates,
	// and one is a key. Anyone can create a header, and reading one with 2,000 values would cost as
	// much as thirty signature checks.
	headerValuesMax = 32
	// claimsValuesMax never rejects claims, because a token has no room for more values.
	claimsValuesMax = TokenBytesMax
)

var errObject = errors.New("is not one JSON object with every name once")

// decodeObject reads a JSON object of at most valuesMax values. decodeObject is stricter than
// encoding/json. decodeObject rejects duplicate names, invalid UTF-8, half of a surrogate pair and
// data after the object, and names are case-sensitive. Two parsers can read an object with such a
// fault differently, which attackers exploit. Numbers are decoded as json.Number.
func decodeObject(data []byte, valuesMax int) (map[string]any, error) {
	if !utf8.Valid(data) || !json.Valid(data) || hasHalfSurrogate(data) {
		return nil, errObject
	}
	o := objectReader{json.NewDecoder(bytes.NewReader(data)), valuesMax}
	o.UseNumber()
	if opening, err := o.Token(); err != nil || opening != json.Delim('{') {
		return nil, errObject
	}
	object, err := o.members(1)
	if err != nil {
		return nil, err
	}
	if _, err := o.Token(); err != io.EOF {
		return nil, errObject
	}
	return object, nil
}

// objectReader reads valid JSON.
type objectReader struct {
	*json.Decoder
	left int // the number of values that may still follow
}

// hasHalfSurrogate reports whether valid JSON escapes one half of a surrogate pair without the
// other. encoding/json reads each half as the same character, so users with different names would
// become one.
func hasHalfSurrogate(data []byte) bool {
	for at := 0; ; {
		next := bytes.IndexByte(data[at:], '\\') // backslashes occur only in strings
		if next < 0 {
			return false
		}
		at += next
		r := escapedUnit(data[at:])
		switch {
		case r < 0:
			at += 2
		case !utf16.IsSurrogate(r):
			at += unitBytes
		case utf16.DecodeRune(r, escapedUnit(data[at+unitBytes:])) == unicode.ReplacementChar:
			return true
		default:
			at += 2 * unitBytes
		}
	}
}

// unitBytes is the length of an escape such as \u00e9.
const unitBytes = 6

// escapedUnit returns the UTF-16 unit of the escape at the beginning of data, or -1.
func escapedUnit(data []byte) rune {
	if len(data) < unitBytes || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseUint(string(data[2:unitBytes]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(unit)
}

// objectReader.members reads the rest of an object after its opening brace.
func (o *objectReader) members(depth int) (map[string]any, error) {
	object := map[string]any{}
	for o.More() {
		name, err := o.Token()
		if err != nil {
			return nil, errObject
		}
		text, ok := name.(string)
		if _, twice := object[text]; twice || !ok {
			return nil, errObject
		}
		if object[text], err = o.value(depth); err != nil {
			return nil, err
		}
	}
	_, err := o.Token() // the closing brace
	return object, err
}

func (o *objectReader) value(depth int) (any, error) {
	if o.left--; o.left < 0 || depth > objectDepthMax {
		return nil, errObject
	}
	token, err := o.Token()
	if err != nil {
		return nil, errObject
	}
	switch token {
	case json.Delim('{'):
		return o.members(depth + 1)
	case json.Delim('['):
		list := []any{}
		for o.More() {
			item, err := o.value(depth + 1)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		_, err := o.Token()
		return list, err
	}
	return token, nil
}
