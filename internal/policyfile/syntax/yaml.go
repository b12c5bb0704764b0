// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/penstock/penstock/core/policy"
)

// parseYAML reads a YAML 1.2 document into nodes. If the document cannot be read, parseYAML
// returns nil and reports a problem. Anchors, aliases, merge keys and tags are rejected: they
// make a policy hard to read, and aliases can expand to billions of nodes.
func parseYAML(name string, data []byte, found *Report) *Node {
	return parseYAMLWith(&yamlParser{name: name, found: found}, data)
}

// parseYAMLWith is parseYAML with a parser that can accept constructs that policies must not
// contain.
func parseYAMLWith(p *yamlParser, data []byte) *Node {
	name, found := p.name, p.found
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	// A carriage return also ends a YAML line.
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	if rejectShape(name, data, found) {
		return nil
	}
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		problem := policy.Problem{Path: "yaml", Place: name, Why: err.Error()}
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			problem.Why = Cut(syntax.GetMessage())
			problem.Place = placeAt(name, lineOf(syntax.GetToken()))
			problem.Remedy = syntaxRemedy(syntax)
		}
		found.Add(problem)
		return nil
	}
	return p.document(file)
}

// syntaxRemedy explains the most frequent mistakes.
func syntaxRemedy(syntax yaml.Error) string {
	at := syntax.GetToken()
	switch {
	case at == nil:
		return ""
	case strings.HasPrefix(at.Value, "@"), strings.HasPrefix(at.Value, "`"):
		return "put the value in quotes"
	case strings.Contains(at.Origin, "\t"):
		return "indent with spaces, not with tabs"
	case strings.Contains(syntax.GetMessage(), "invalid key"):
		return "put values that begin with a colon in quotes"
	case strings.Contains(syntax.GetMessage(), "not allowed in this context"):
		return "look at how far this line and those above it are indented, and put values with a colon and a space in quotes"
	}
	return ""
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 1
	}
	return t.Position.Line
}

type yamlParser struct {
	name  string
	found *Report
	deep  bool // a value nested too deeply has been reported
	// secret reports that problems must not contain the value.
	secret bool
	shared *anchorSet // nil for a policy
}

func (p *yamlParser) problem(line int, value, why, remedy string) {
	if p.secret {
		value, remedy = "", "put it in quotes"
	}
	p.found.Add(policy.Problem{Path: "yaml", Place: placeAt(p.name, line), Value: value, Why: why, Remedy: remedy})
}

// document returns the tree of the only document in the file.
func (p *yamlParser) document(file *ast.File) *Node {
	var tree *Node
	for _, document := range file.Docs {
		if _, isDirective := document.Body.(*ast.DirectiveNode); isDirective || document.Body == nil {
			continue
		}
		if tree != nil {
			p.problem(lineOf(document.Body.GetToken()), "", "is a second document in one file",
				"keep one; everything goes between the lines ---")
			return tree
		}
		tree = p.value(document.Body, 0)
	}
	if tree == nil && len(p.found.Problems) == 0 {
		ReportEmpty(p.name, p.found)
	}
	return tree
}

func (p *yamlParser) value(from ast.Node, depth int) *Node {
	line := lineOf(from.GetToken())
	n := &Node{Place: placeAt(p.name, line)}
	if word, ok := colonWord(from); ok {
		n.Kind, n.Text = KindWord, word
		return n
	}
	if depth > depthMax {
		if !p.deep {
			p.deep = true
			p.found.Add(deepProblem("yaml", n.Place))
		}
		return n
	}
	switch from := from.(type) {
	case *ast.MappingNode:
		return p.mapping(from, depth)
	case *ast.MappingValueNode:
		return p.mapping(&ast.MappingNode{Values: []*ast.MappingValueNode{from}}, depth)
	case *ast.SequenceNode:
		n.Kind = KindList
		for _, item := range from.Values {
			if value := p.value(item, depth+1); value != nil {
				n.Items = append(n.Items, value)
			}
		}
	case *ast.StringNode:
		n.Kind, n.Text = KindWord, from.Value
	case *ast.LiteralNode:
		n.Kind, n.Text = KindWord, from.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		n.Kind, n.Text = KindNumber, from.GetToken().Value
	case *ast.BoolNode:
		n.Kind, n.Text = KindBool, fmt.Sprint(from.Value)
		if p.shared != nil {
			n.Text = from.GetToken().Value
		}
	case *ast.NullNode:
	default:
		if p.shared != nil {
			return p.resolve(from, line, depth)
		}
		p.reject(from, line)
		return nil // a problem was reported, so the caller omits the value
	}
	return n
}

// colonWord returns the plain word that the parser split into a key and its value. Inside brackets
// the parser reads the items of [header:X-User, fe80::/10] as maps, although YAML requires a space
// after the colon of a key.
func colonWord(from ast.Node) (string, bool) {
	mapping, ok := from.(*ast.MappingNode)
	if !ok || len(mapping.Values) != 1 || mapping.Start == nil || mapping.Start.Type != token.MappingValueType {
		return "", false
	}
	pair := mapping.Values[0]
	if pair.Value == nil || pair.Start == nil {
		return "", false
	}
	key, value := pair.Key.GetToken(), pair.Value.GetToken()
	_, isScalar := pair.Value.(ast.ScalarNode)
	colon := pair.Start.Position
	joined := key.Position.Line == colon.Line && value.Position.Line == colon.Line &&
		key.Position.Column+utf8.RuneCountInString(key.Value) == colon.Column && value.Position.Column == colon.Column+1
	if !isScalar || !joined || isQuoted(key) || isQuoted(value) {
		return "", false
	}
	return key.Value + ":" + value.Value, true
}

func isQuoted(t *token.Token) bool {
	return t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType
}

// yamlParser.reject reports a node of a kind that policies must not contain.
func (p *yamlParser) reject(from ast.Node, line int) {
	switch from := from.(type) {
	case *ast.AliasNode:
		value := "*"
		if from.Value != nil {
			value += from.Value.GetToken().Value
		}
		p.problem(line, value, "begins with *, which makes it an alias, and a policy may have none",
			`put it in quotes: "`+Cut(value)+`"`)
	case *ast.AnchorNode:
		p.problem(line, "", "has an anchor (&), and a policy may have none", "write the value out, or put the value in quotes")
	case *ast.TagNode:
		p.problem(line, from.GetToken().Value, "is a tag, and a policy may have none", "leave it out; quotes make a string")
	default:
		p.problem(line, "", "is "+from.Type().String()+", which a policy may not have", "")
	}
}

func (p *yamlParser) mapping(from *ast.MappingNode, depth int) *Node {
	n := &Node{Kind: KindMap}
	line := lineOf(from.Start)
	if len(from.Values) > 0 && !from.IsFlowStyle {
		line = lineOf(from.Values[0].Key.GetToken())
	}
	n.Place = placeAt(p.name, line)
	for _, pair := range from.Values {
		keyLine := lineOf(pair.Key.GetToken())
		if _, merges := pair.Key.(*ast.MergeKeyNode); merges && p.shared != nil && pair.Value != nil {
			p.merge(n, pair, keyLine, depth)
			continue
		}
		key, ok := pair.Key.(*ast.StringNode)
		if !ok {
			p.badKey(pair.Key, keyLine)
			continue
		}
		p.secret = key.Value == "secret"
		value := p.pairValue(pair, keyLine, depth)
		p.secret = false
		if value != nil {
			p.set(n, key.Value, keyLine, value)
		}
	}
	if len(from.Values) > 0 && len(n.Entries) == 0 {
		return nil // its problems have been reported
	}
	return n
}

func (p *yamlParser) pairValue(pair *ast.MappingValueNode, line, depth int) *Node {
	if pair.Value == nil {
		return &Node{Place: placeAt(p.name, line)}
	}
	return p.value(pair.Value, depth+1)
}

func (p *yamlParser) badKey(key ast.Node, line int) {
	if _, merge := key.(*ast.MergeKeyNode); merge {
		p.problem(line, "<<", "merges another block, and a policy may have no merge keys", "write the fields out")
		return
	}
	text := key.GetToken().Value
	p.problem(line, text, "is not a string, and keys must be strings", "put it in quotes, with the colons that belong to it")
}
