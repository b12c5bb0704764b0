// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/penstock/penstock/internal/operator"
)

// description is an OpenAPI document, with a record of the answers that were compared with it.
type description struct {
	t    *testing.T
	root map[string]any
	seen map[string]bool // "get /path 200"
}

func readDescription(t *testing.T) *description {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := &description{t: t, root: map[string]any{}, seen: map[string]bool{}}
	if err := yaml.Unmarshal(text, &d.root); err != nil {
		t.Fatal(err)
	}
	return d
}

// description.at returns the object at a path of keys.
func (d *description) at(keys ...string) map[string]any {
	d.t.Helper()
	node := d.root
	for _, key := range keys {
		next, ok := d.resolve(node)[key].(map[string]any)
		if !ok {
			d.t.Fatalf("openapi.yaml has no %s", strings.Join(keys, " "))
		}
		node = next
	}
	return node
}

// description.resolve returns the object to which a node refers by $ref, or the node itself.
func (d *description) resolve(node map[string]any) map[string]any {
	d.t.Helper()
	if ref, ok := node["$ref"].(string); ok {
		return d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	return node
}

// describesNothingElse fails the test for each described answer that was not seen.
func (d *description) describesNothingElse() {
	for path, item := range d.at("paths") {
		for method, operation := range item.(map[string]any) {
			if method != "get" && method != "post" {
				continue
			}
			for status := range operation.(map[string]any)["responses"].(map[string]any) {
				if where := method + " " + path + " " + status; !d.seen[where] {
					d.t.Errorf("openapi.yaml describes %s, which no server answered", where)
				}
			}
		}
	}
}

// describesRoutes fails the test unless the document has exactly the routes of operators that
// Penstock serves.
func (d *description) describesRoutes() {
	d.t.Helper()
	var described, served []string
	for path, item := range d.at("paths") {
		if !strings.HasPrefix(path, operator.Prefix) {
			continue
		}
		for method := range item.(map[string]any) {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	for _, route := range operator.Routes() {
		served = append(served, route.Method+" "+operator.Prefix+route.Name)
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		d.t.Errorf("openapi.yaml describes the routes %q, and these are served: %q", described, served)
	}
}

// schemaKeywords lists the keywords that the method named holds supports. The test fails if a
// schema has any other keyword.
var schemaKeywords = []string{"$ref", "type", "properties", "required", "additionalProperties", "items", "enum", "const", "minimum",
	"maximum", "pattern", "description", "default", "anyOf"}

// description.holds checks a value against a JSON Schema.
func (d *description) holds(where string, schema, value any) {
	d.t.Helper()
	s, ok := schema.(map[string]any)
	if !ok {
		d.t.Fatalf("%s: no schema", where)
	}
	s = d.resolve(s)
	for keyword := range s {
		if !slices.Contains(schemaKeywords, keyword) {
			d.t.Errorf("%s: this test does not know the keyword %q", where, keyword)
		}
	}
	if either, ok := s["anyOf"].([]any); ok { // the first schema, or null
		if value != nil {
			d.holds(where, either[0], value)
		}
		return
	}
	if kind, ok := s["type"].(string); ok && !isOfType(kind, value) {
		d.t.Errorf("%s: %v is not of the type %s", where, value, kind)
		return
	}
	if want, ok := s["const"]; ok && !sameValue(want, value) {
		d.t.Errorf("%s: %v, want %v", where, value, want)
	}
	if among, ok := s["enum"].([]any); ok && !slices.ContainsFunc(among, func(one any) bool { return sameValue(one, value) }) {
		d.t.Errorf("%s: %v is not one of %v", where, value, among)
	}
	if pattern, ok := s["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(value.(string)) {
		d.t.Errorf("%s: %q does not match %s", where, value, pattern)
	}
	if least, ok := number(s["minimum"]); ok && value.(float64) < least {
		d.t.Errorf("%s: %v is less than %v", where, value, least)
	}
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			d.holds(where+"[]", s["items"], item)
		}
	case map[string]any:
		d.holdsObject(where, s, value)
	}
}

func (d *description) holdsObject(where string, s, value map[string]any) {
	d.t.Helper()
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := value[name.(string)]; !ok {
			d.t.Errorf("%s: %v is missing in %v", where, name, value)
		}
	}
	properties, _ := s["properties"].(map[string]any)
	for name, member := range value {
		if schema, ok := properties[name]; ok {
			d.holds(where+"."+name, schema, member)
		} else if more, ok := s["additionalProperties"].(map[string]any); ok {
			d.holds(where+"."+name, more, member)
		} else if s["additionalProperties"] == false {
			d.t.Errorf("%s: %q is not described", where, name)
		}
	}
}

func isOfType(kind string, value any) bool {
	switch kind {
	case "object":
		return reflect.TypeOf(value) == reflect.TypeFor[map[string]any]()
	case "array":
		return reflect.TypeOf(value) == reflect.TypeFor[[]any]()
	case "string":
		return reflect.TypeOf(value) == reflect.TypeFor[string]()
	case "boolean":
		return reflect.TypeOf(value) == reflect.TypeFor[bool]()
	case "number":
		_, ok := value.(float64)
		return ok
	case "integer":
		n, ok := value.(float64)
		return ok && n == float64(int64(n))
	}
	return false
}

// number returns a YAML number as JSON would represent it.
func number(value any) (float64, bool) {
	switch n := value.(type) {
	case uint64:
		return float64(n), true
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

func sameValue(want, got any) bool {
	if n, ok := number(want); ok {
		return n == got
	}
	return want == got
}
