// SPDX-License-Identifier: Apache-2.0

// Package clientgen generates a Go client from an OpenAPI document.
//
// # Promise
//
// The same document always yields the same files. A part of a document that the generator does not
// know is an error, so no operation and no field is left out silently.
//
// # When not to use it
//
// The package supports only the parts of OpenAPI that the document of the control plane uses.
package clientgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// document is an OpenAPI document.
type document struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID, Summary, Description string
	Parameters                        []parameter
	RequestBody                       *struct{ Content map[string]media }
	Responses                         map[string]response
	method, path                      string
}

type parameter struct {
	Name, In, Description string
	Required              bool
	Schema                schema
}

type media struct{ Schema schema }

type response struct {
	Content map[string]media
	Headers map[string]json.RawMessage
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 types
	Format, Description  string
	Enum                 []string
	Properties           map[string]schema
	Required             []string
	Items                *schema
	AdditionalProperties json.RawMessage
}

// types holds the value of the field named type, which is one name or a list of names.
type types []string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *types) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]string)(t))
	}
	*t = types{""}
	return json.Unmarshal(text, &(*t)[0])
}

// schema.null reports whether the value may be null.
func (s *schema) null() bool { return slices.Contains(s.Type, "null") }

// schema.kind returns the name of the type, other than null.
func (s *schema) kind() string {
	for _, name := range s.Type {
		if name != "null" {
			return name
		}
	}
	return ""
}

// document.operations returns all operations, sorted by path and then by method.
func (d *document) operations() (all []operation) {
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			o := d.Paths[path][method]
			o.method, o.path = strings.ToUpper(method), path
			all = append(all, o)
		}
	}
	return all
}

// operation.topic returns the first part of the operation's path after the version.
func (o *operation) topic() string {
	topic, _, _ := strings.Cut(strings.TrimPrefix(o.path, "/v1/"), "/")
	return topic
}

// operation.answer returns the schema of a successful answer. If the answer is not JSON, the format
// of the schema is "binary". The result named ok is false if the answer has no body, and tagged
// reports whether the answer has an ETag.
func (o *operation) answer() (s schema, ok, tagged bool, err error) {
	for status, r := range o.Responses {
		if !strings.HasPrefix(status, "2") {
			continue
		}
		_, tagged = r.Headers["ETag"]
		for name, m := range r.Content {
			if name != "application/json" && m.Schema.Format != "binary" {
				return s, false, false, fmt.Errorf("%s: an answer of the type %q is not known", o.OperationID, name)
			}
			s, ok = m.Schema, true
		}
	}
	return s, ok, tagged, nil
}

// abbreviations holds the words that Go names spell in capitals.
var abbreviations = map[string]string{"id": "ID", "ip": "IP", "url": "URL"}

// exportName converts a name of the document to an exported Go name.
func exportName(name string) string {
	var text strings.Builder
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' }) {
		if whole := abbreviations[word]; whole != "" {
			text.WriteString(whole)
		} else {
			text.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return text.String()
}

// typeName returns the name of the Go type for a component.
func typeName(component string) string {
	if component == "Client" {
		return "ClientEntry" // the name Client belongs to the type that calls the API
	}
	return strings.TrimSuffix(component, "Body")
}

// schema.component returns the name of the component that a schema refers to, or "".
func (s *schema) component() string { return strings.TrimPrefix(s.Ref, "#/components/schemas/") }

// schema.references returns the names of the components that a schema refers to.
func (s *schema) references() (all []string) {
	if s.Ref != "" {
		all = append(all, s.component())
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		all = append(all, property.references()...)
	}
	if s.Items != nil {
		all = append(all, s.Items.references()...)
	}
	if values := s.values(); values != nil {
		all = append(all, values.references()...)
	}
	return all
}

// schema.values returns the schema of the values of an object that may have any field names. For
// any other schema it returns nil.
func (s *schema) values() *schema {
	values := new(schema)
	if len(s.AdditionalProperties) == 0 || json.Unmarshal(s.AdditionalProperties, values) != nil {
		return nil
	}
	return values
}
