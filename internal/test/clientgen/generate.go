// SPDX-License-Identifier: Apache-2.0

package clientgen

import (
	"encoding/json"
	"fmt"
	"go/format"
	"maps"
	"slices"
	"strings"
)

// generator writes the files.
type generator struct {
	document document
	written  map[string]bool // components that have a type
	text     strings.Builder // of the file that is being written
}

// Files returns the generated files by name.
func Files(openAPI []byte) (map[string][]byte, error) {
	g := &generator{written: map[string]bool{}}
	if err := json.Unmarshal(openAPI, &g.document); err != nil {
		return nil, err
	}
	byTopic := map[string][]operation{}
	for _, o := range g.document.operations() {
		byTopic[o.topic()] = append(byTopic[o.topic()], o)
	}
	files := map[string][]byte{}
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		text, err := g.file(byTopic[topic])
		if err != nil {
			return nil, err
		}
		files[topic+"_generated.go"] = text
	}
	return files, nil
}

// generator.file returns the file for the given operations. The file also has those of their types
// that no earlier file has.
func (g *generator) file(operations []operation) ([]byte, error) {
	g.text.Reset()
	for i := range operations {
		if err := g.operation(&operations[i]); err != nil {
			return nil, err
		}
	}
	for i := range operations {
		o := &operations[i]
		names, err := o.components()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if err := g.component(name, o.method == "PATCH" && o.RequestBody != nil); err != nil {
				return nil, err
			}
		}
	}
	body := g.text.String()
	head := "// SPDX-License-Identifier: Apache-2.0\n\n// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.\n\npackage controlclient\n\nimport (\n"
	for _, name := range []string{"context", "encoding/json", "io", "iter", "strconv", "time"} {
		if strings.Contains(body, name[strings.LastIndex(name, "/")+1:]+".") {
			head += fmt.Sprintf("%q\n", name)
		}
	}
	text, err := format.Source([]byte(head + ")\n" + body))
	if err != nil {
		return nil, fmt.Errorf("%w in:\n%s", err, body)
	}
	return text, nil
}

// operation.components returns the names of the components in the body and the answer of an
// operation.
func (o *operation) components() (names []string, err error) {
	if o.RequestBody != nil {
		for _, m := range o.RequestBody.Content {
			names = m.Schema.references()
		}
	}
	answer, _, _, err := o.answer()
	return append(names, answer.references()...), err
}

// generator.component writes the type of a component, and the types of the components that it
// refers to, unless they are already written. In a partial type, a field that is left out differs
// from an empty field.
func (g *generator) component(name string, partial bool) error {
	if g.written[name] {
		return nil
	}
	g.written[name] = true
	s, ok := g.document.Components.Schemas[name]
	if !ok || s.kind() != "object" {
		return fmt.Errorf("the component %s is no object", name)
	}
	partial = partial && strings.HasPrefix(name, "Patch")
	about := "is the JSON object that the OpenAPI document of the API describes in the schema " + name + "."
	if partial {
		about = "is the body of a change. A field that is nil stays as it is."
	}
	g.comment("", typeName(name)+" "+about)
	fmt.Fprintf(&g.text, "type %s struct {\n", typeName(name))
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		if err := g.field(name, field, s.Properties[field], slices.Contains(s.Required, field), partial); err != nil {
			return err
		}
	}
	g.text.WriteString("}\n\n")
	for _, other := range s.references() {
		if err := g.component(other, false); err != nil {
			return err
		}
	}
	return nil
}

// generator.field writes a field of a type.
func (g *generator) field(component, name string, s schema, required, partial bool) error {
	kind, err := goType(&s)
	if err != nil {
		return fmt.Errorf("%s.%s: %w", component, name, err)
	}
	option := ""
	if !required {
		option = ",omitempty"
		switch {
		case kind == "time.Time":
			option = ",omitzero"
		case s.Ref != "" || partial:
			kind = "*" + kind
		}
	}
	about := s.Description
	if len(s.Enum) > 0 {
		about = strings.Trim(about+"; one of "+strings.Join(s.Enum, ", "), "; ")
	}
	if about != "" {
		g.comment("\t", exportName(name)+": "+about)
	}
	fmt.Fprintf(&g.text, "\t%s %s `json:\"%s%s\"`\n", exportName(name), kind, name, option)
	return nil
}

// goType returns the Go type of a schema.
func goType(s *schema) (string, error) {
	kind := ""
	switch s.kind() {
	case "string":
		if kind = "string"; s.Format == "date-time" {
			kind = "time.Time"
		}
	case "integer":
		kind = "int64"
	case "number":
		kind = "float64"
	case "boolean":
		kind = "bool"
	case "array":
		item, err := goType(s.Items)
		return "[]" + item, err
	case "object":
		values := s.values()
		if values == nil {
			return "", fmt.Errorf("an object without a name is not known")
		}
		value, err := goType(values)
		return "map[string]" + value, err
	case "":
		if s.Ref != "" {
			return typeName(s.component()), nil
		}
		return "json.RawMessage", nil
	default:
		return "", fmt.Errorf("the type %q is not known", s.Type)
	}
	if s.null() {
		kind = "*" + kind
	}
	return kind, nil
}

// commentColumns is the width of comments.
const commentColumns = 92

// generator.comment writes a comment, broken into lines.
func (g *generator) comment(indent, text string) {
	line := indent + "//"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > commentColumns && len(line) > len(indent)+2 {
			g.text.WriteString(line + "\n")
			line = indent + "//"
		}
		line += " " + word
	}
	g.text.WriteString(line + "\n")
}
