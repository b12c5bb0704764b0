// SPDX-License-Identifier: Apache-2.0

package identity

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

// objectDepthMax is how deep claims may be nested. Real ones have three levels.
const objectDepthMax = 16

var errObject = errors.New("is not one JSON object with every name once")

// decodeObject reads a JSON object more strictly than encoding/json: a name that stands twice, names that differ from what
// was asked for in case only, invalid UTF-8, half a surrogate pair and anything behind the object are where two readers of
// one token disagree, and an attacker lives on that. Numbers are json.Number.
func decodeObject(data []byte) (map[string]any, error) {
	if !utf8.Valid(data) || !json.Valid(data) || halvesPair(data) {
		return nil, errObject
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if opening, err := d.Token(); err != nil || opening != json.Delim('{') {
		return nil, errObject
	}
	object, err := decodeMembers(d, 1)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errObject
	}
	return object, nil
}

// halvesPair reports whether valid JSON escapes one half of a surrogate pair without the other: encoding/json reads each
// such half as the same character, so that users with different names would be one.
func halvesPair(data []byte) bool {
	for at := 0; ; {
		next := bytes.IndexByte(data[at:], '\\') // stands in strings only
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

// unitBytes is the length of \u00e9.
const unitBytes = 6

// escapedUnit returns the UTF-16 unit that data begins with as an escape, or -1.
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

// decodeMembers reads an object whose brace is open.
func decodeMembers(d *json.Decoder, depth int) (map[string]any, error) {
	object := map[string]any{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, errObject
		}
		text, ok := name.(string)
		if _, twice := object[text]; twice || !ok {
			return nil, errObject
		}
		if object[text], err = decodeValue(d, depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token() // the closing brace
	return object, err
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > objectDepthMax {
		return nil, errObject
	}
	token, err := d.Token()
	if err != nil {
		return nil, errObject
	}
	switch token {
	case json.Delim('{'):
		return decodeMembers(d, depth+1)
	case json.Delim('['):
		list := []any{}
		for d.More() {
			item, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		_, err := d.Token()
		return list, err
	}
	return token, nil
}
