// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// decode decodes a text that is one JSON object: a record, or a line. An unknown field is an error,
// because it would otherwise be ignored. Text after the object is an error, too.
func decode[T any](what string, text []byte) (*T, error) {
	value, decoder := new(T), json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return nil, fmt.Errorf("the %s is not read: %w", what, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the %s is followed by other text", what)
	}
	return value, nil
}
