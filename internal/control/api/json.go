// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// jsonFormat reads and writes bodies. Its errors have the words of the API, not those of Go.
var jsonFormat = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: readJSON}

// readJSON decodes a body. The body conforms to the document, but a number may not fit.
func readJSON(text []byte, to any) error {
	err := json.Unmarshal(text, to)
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	field := "the body"
	for name := range strings.SplitSeq(wrong.Field, ".") {
		if name != "" && strings.ToLower(name) == name { // other names are those of embedded types
			field = name
		}
	}
	return fmt.Errorf("%s: %s is not %s", field, wrong.Value, nameType(wrong.Type.Kind()))
}

// nameType describes the values of a Go type.
func nameType(kind reflect.Kind) string {
	switch {
	case kind >= reflect.Int && kind <= reflect.Uint64:
		return "a whole number that fits: write fewer digits, without a fraction"
	case kind == reflect.Float32, kind == reflect.Float64:
		return "a number that fits: write fewer digits"
	case kind == reflect.String:
		return "a text: write it in quotes"
	case kind == reflect.Bool:
		return "true or false"
	case kind == reflect.Slice, kind == reflect.Array:
		return "a list: write it in []"
	default:
		return "an object: write it in {}"
	}
}
