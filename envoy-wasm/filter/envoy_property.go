// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// attributeText returns the value of an Envoy attribute as text. An empty value counts as missing.
//
// Envoy does not report the type of a value. Attributes that Envoy documents as strings are
// returned byte for byte, even if they are not text, because the client chooses some of them. Any
// other value, including those within metadata and filter state, is returned unchanged if it could
// be text. Otherwise 8 bytes are a number, one byte is a boolean, and other values are returned
// unchanged. Numbers within metadata come from JSON and are floating point; all others are
// integers.
func attributeText(h Host, name string) wire.Value {
	path := propertyPath(name)
	if strings.Join(path, "") == "" { // this is a name such as ".", which is not a valid path
		return wire.Value{}
	}
	value, ok := h.Property(path...)
	switch {
	case !ok || value == "":
		return wire.Value{}
	case isString(path) || isText(value):
		return wire.Value{Text: value, Given: true}
	case len(value) == 1:
		return wire.Value{Text: strconv.FormatBool(value != "\x00"), Given: true}
	case len(value) != 8:
		return wire.Value{Text: value, Given: true}
	}
	bits := binary.LittleEndian.Uint64([]byte(value))
	if !slices.Contains(path, "filter_metadata") {
		return wire.Value{Text: strconv.FormatInt(int64(bits), 10), Given: true}
	}
	return wire.Value{Text: strconv.FormatFloat(math.Float64frombits(bits), 'f', -1, 64), Given: true}
}

// isString reports whether Envoy documents the attribute as a string.
func isString(path []string) bool {
	last := path[len(path)-1]
	switch path[0] {
	case "request":
		if len(path) > 2 {
			return path[1] == "headers"
		}
		return last != "headers" && last != "time" && last != "duration" && last != "size" && last != "total_size"
	case "source", "destination", "upstream":
		return last != "port" && !strings.HasSuffix(last, "duration") && last != "request_attempt_count" && last != "num_endpoints"
	case "connection":
		return last != "id" && last != "mtls"
	case "xds":
		return !strings.Contains(last, "metadata") && last != "listener_direction"
	}
	return false
}

// isText reports whether the value could be text. The encodings of numbers, booleans, lists and
// maps contain bytes that do not occur in text.
func isText(value string) bool {
	return utf8.ValidString(value) && strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// propertyPath splits the name of an attribute at its dots: metadata.filter_metadata.ns.key. Parts
// that contain dots themselves are written in brackets:
// metadata.filter_metadata.[envoy.filters.http.jwt_authn].payload.sub.
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
