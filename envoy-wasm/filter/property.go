// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/wire"
)

// attribute returns what Envoy knows under the name of an attribute, as text. What is empty, or neither a text nor a number
// nor a truth value, counts as missing: a list or a map has no text that two proxies would agree on.
//
// Envoy does not say of what kind a value is. A text is what could be one; what could not is a number in 8 bytes, or a
// truth value in one. Numbers within metadata came out of JSON and are floating point, all others are whole.
func attribute(h Host, name string) wire.Value {
	path := propertyPath(name)
	if strings.Join(path, "") == "" { // a name such as ".", which cannot be asked for
		return wire.Value{}
	}
	value, ok := h.Property(path...)
	switch {
	case !ok || value == "":
		return wire.Value{}
	case isText(value):
		return wire.Value{Text: value, Given: true}
	case len(value) == 1:
		return wire.Value{Text: strconv.FormatBool(value != "\x00"), Given: true}
	case len(value) != 8:
		return wire.Value{}
	}
	bits := binary.LittleEndian.Uint64([]byte(value))
	if !slices.Contains(path, "filter_metadata") {
		return wire.Value{Text: strconv.FormatInt(int64(bits), 10), Given: true}
	}
	return wire.Value{Text: strconv.FormatFloat(math.Float64frombits(bits), 'f', -1, 64), Given: true}
}

// isText reports whether the value could be a text: numbers, truth values, lists and maps hold bytes that none has.
func isText(value string) bool {
	return utf8.ValidString(value) && strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// propertyPath splits the name of an attribute: metadata.filter_metadata.ns.key. Parts that hold dots are written in
// brackets: metadata.filter_metadata.[envoy.filters.http.jwt_authn].payload.sub.
func propertyPath(name string) (path []string) {
	for name != "" {
		var part string
		if rest, ok := strings.CutPrefix(name, "["); ok {
			part, rest, _ = strings.Cut(rest, "]")
			name = strings.TrimPrefix(rest, ".")
		} else {
			part, name, _ = strings.Cut(name, ".")
		}
		path = append(path, part)
	}
	return path
}
