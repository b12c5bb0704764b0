// SPDX-License-Identifier: Apache-2.0

package clientgen

import (
	"fmt"
	"strings"
)

// call is an operation in the form of a Go method.
type call struct {
	*operation
	name      string
	arguments []string    // as written in the signature
	passed    []string    // the same arguments, as written in a call
	options   []parameter // the parameters in the struct of options
	condition bool
	answerOf  string // the type of the answer; "" for none
	binary    bool   // the answer is not JSON
	tagged    bool
	lines     []string // the lines of the method that put the parameters into the request
}

// generator.operation writes the Go methods for an operation.
func (g *generator) operation(o *operation) error {
	c := &call{operation: o, name: exportName(o.OperationID), arguments: []string{"ctx context.Context"}, passed: []string{"ctx"}}
	answer, ok, tagged, err := o.answer()
	if err != nil {
		return err
	}
	if c.tagged = tagged; ok && answer.Format == "binary" {
		c.binary = true
	} else if ok {
		c.answerOf = typeName(answer.component())
	}
	if err := c.parameters(); err != nil {
		return err
	}
	if err := c.takeBody(); err != nil {
		return err
	}
	if err := g.options(c); err != nil {
		return err
	}
	g.method(c)
	return g.writePages(c)
}

// call.argument adds an argument to the generated method.
func (c *call) argument(name, kind string) {
	c.arguments = append(c.arguments, name+" "+kind)
	c.passed = append(c.passed, name)
}

// setters holds, by the type of a parameter, the name of the request's method that sets it.
var setters = map[string]string{"string": "text", "int64": "number", "bool": "truth", "time.Time": "instant"}

// call.parameters adds the arguments of the generated method: first the parameters of the path,
// then the required ones, the optional ones, and the condition (If-Match or If-None-Match).
func (c *call) parameters() error {
	if err := c.pathParameters(); err != nil {
		return err
	}
	for _, p := range c.Parameters {
		kind, err := goType(&p.Schema)
		if err != nil || kind != "string" && (p.In == "header" || setters[kind] == "") {
			return fmt.Errorf("%s: the parameter %s has the type %q, which is not known: %w", c.OperationID, p.Name, kind, err)
		}
		set := setters[kind]
		if p.In == "header" {
			set = "field"
		}
		switch {
		case p.In == "path":
		case p.Name == "If-None-Match" && c.operation.method == "GET":
			c.argument("known", "ETag")
			c.lines = append(c.lines, `r.field("If-None-Match", string(known))`)
		case p.Name == "If-Match" || p.Name == "If-None-Match":
			c.condition = true
		case p.Required:
			name := strings.ToLower(exportName(p.Name))
			c.argument(name, kind)
			c.lines = append(c.lines, fmt.Sprintf("r.%s(%q, %s)", set, p.Name, name))
		default:
			c.options = append(c.options, p)
			c.lines = append(c.lines, fmt.Sprintf("r.%s(%q, o.%s)", set, p.Name, exportName(p.Name)))
		}
	}
	if len(c.options) > 0 {
		c.argument("o", c.name+"Options")
	}
	if c.condition {
		c.argument("when", "Condition")
		c.lines = append(c.lines, "r.condition(when)")
	}
	return nil
}

// pathParameters adds the parameters of the path, in the order in which the path has them.
func (c *call) pathParameters() error {
	first, rest, _ := strings.Cut(c.path, "{")
	c.lines = append(c.lines, fmt.Sprintf("r.path = %q", first))
	for rest != "" {
		name, after, ok := strings.Cut(rest, "}")
		if !ok {
			return fmt.Errorf("the path %q is not closed", c.path)
		}
		after, rest, _ = strings.Cut(after, "{")
		kind, value := "string", name
		for _, p := range c.Parameters {
			if p.In == "path" && p.Name == name && p.Schema.kind() == "integer" {
				kind, value = "int64", "strconv.FormatInt("+name+", 10)"
			}
		}
		c.argument(name, kind)
		c.lines = append(c.lines, fmt.Sprintf("r.segment(%q, %s, %q)", name, value, after))
	}
	return nil
}

// takeBody adds the body of the request.
func (c *call) takeBody() error {
	if c.RequestBody == nil {
		return nil
	}
	for name, m := range c.RequestBody.Content {
		switch {
		case name == "application/json" && m.Schema.Ref != "":
			c.argument("body", typeName(m.Schema.component()))
			c.lines = append(c.lines, "r.json(body)")
		case m.Schema.Format == "binary":
			c.argument("body", "io.Reader")
			c.lines = append(c.lines, fmt.Sprintf("r.field(\"Content-Type\", %q)", name), "r.body = body")
		default:
			return fmt.Errorf("%s: a body of the type %q is not known", c.OperationID, name)
		}
	}
	return nil
}

// generator.options writes the struct type that holds the optional parameters.
func (g *generator) options(c *call) error {
	if len(c.options) == 0 {
		return nil
	}
	g.comment("", c.name+"Options are the optional parameters of [Client."+c.name+"].")
	fmt.Fprintf(&g.text, "type %sOptions struct {\n", c.name)
	for _, p := range c.options {
		kind, err := goType(&p.Schema)
		if err != nil {
			return err
		}
		about := p.Description
		if len(p.Schema.Enum) > 0 {
			about = strings.Trim(about+"; one of "+strings.Join(p.Schema.Enum, ", "), "; ")
		}
		if about != "" {
			g.comment("\t", exportName(p.Name)+": "+about)
		}
		fmt.Fprintf(&g.text, "\t%s %s\n", exportName(p.Name), kind)
	}
	g.text.WriteString("}\n\n")
	return nil
}

// generator.method writes the method that calls the operation.
func (g *generator) method(c *call) {
	about := fmt.Sprintf("%s calls %s %s: %s. %s", c.name, c.operation.method, c.path, c.Summary, c.Description)
	results, give := "error", "_, _, err := c.send(ctx, r)\nreturn err"
	switch {
	case c.binary:
		about += " If known is its ETag, the error is an [*Error] with the status 304."
		results, give = "([]byte, ETag, error)", "text, header, err := c.send(ctx, r)\nreturn text, ETag(header.Get(\"ETag\")), err"
	case c.answerOf != "" && c.tagged:
		results, give = "(*"+c.answerOf+", ETag, error)", "return call["+c.answerOf+"](ctx, c, r)"
	case c.answerOf != "":
		results, give = "(*"+c.answerOf+", error)", "answer, _, err := call["+c.answerOf+"](ctx, c, r)\nreturn answer, err"
	}
	g.comment("", about)
	fmt.Fprintf(&g.text, "func (c *Client) %s(%s) %s {\nr := newRequest(%q)\n%s\n%s\n}\n\n", c.name, strings.Join(c.arguments, ", "), results,
		c.operation.method, strings.Join(c.lines, "\n"), give)
}

// writePages writes a method that iterates over all pages, if the answer has pages.
func (g *generator) writePages(c *call) error {
	for component, s := range g.document.Components.Schemas {
		if _, paged := s.Properties["next"]; typeName(component) != c.answerOf || !paged {
			continue
		}
		list, item := "", ""
		for name, property := range s.Properties {
			if property.kind() == "array" {
				kind, err := goType(property.Items)
				if err != nil || list != "" {
					return fmt.Errorf("%s: the answer has the lists %s and %s: %w", c.OperationID, list, name, err)
				}
				list, item = exportName(name), kind
			}
		}
		for _, p := range c.options {
			if p.Name != "after" && p.Name != "before" {
				continue
			}
			key, kind, none := exportName(p.Name), "string", `""`
			if p.Schema.kind() == "integer" {
				kind, none = "int64", "0"
			}
			all := "All" + strings.TrimPrefix(c.name, "List")
			g.comment("", fmt.Sprintf("%s returns the items of all pages of [Client.%s], from o.%s on. It ends after the first error.", all, c.name, key))
			fmt.Fprintf(&g.text, "func (c *Client) %s(%s) iter.Seq2[%s, error] {\nreturn pages(o.%s, func(page %s) ([]%s, %s, error) {\no := o\no.%s = page\n"+
				"answer, err := c.%s(%s)\nif err != nil {\nreturn nil, %s, err\n}\nreturn answer.%s, answer.Next, nil\n})\n}\n\n",
				all, strings.Join(c.arguments, ", "), item, key, kind, item, kind, key, c.name, strings.Join(c.passed, ", "), none, list)
			return nil
		}
		return fmt.Errorf("%s: the answer has pages, and no parameter selects one", c.OperationID)
	}
	return nil
}
