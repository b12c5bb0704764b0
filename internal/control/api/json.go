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

// jsonFormat reads and writes bodies. Its errors name fields and types as the API does, not as Go
// does.
var jsonFormat = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: readJSON}

// readJSON decodes a body. The body conforms to the document, but a number in it may be too large
// for its Go type.
func readJSON(text []byte, to any) error {
	err := json.Unmarshal(text, to)
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	field := "the body"
	for name := range strings.SplitSeq(wrong.Field, ".") {
		if name != "" && strings.ToLower(name) == name { // a name with capitals is that of an embedded type
			field = name
		}
	}
	return fmt.Errorf("%s: %s is not %s", field, wrong.Value, nameType(wrong.Type.Kind()))
}

// nameType returns a text that says, to the author of a request, which JSON values fit a Go type.
func nameType(kind reflect.Kind) string {
	if kind >= reflect.Int && kind <= reflect.Uint64 {
		return "a whole number that fits: write fewer digits, without a fraction"
	}
	switch kind {
	case reflect.Float32, reflect.Float64:
		return "a number that fits: write fewer digits"
	case reflect.String:
		return "a text: write it in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list: write it in []"
	default:
		return "an object: write it in {}"
	}
}
