// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/penstock/penstock/core/policy"
)

// parseTOML reads a TOML document into nodes. If the document cannot be read, parseTOML returns
// nil and adds a problem with the reason.
func parseTOML(name string, data []byte, found *Report) *Node {
	p := tomlParser{name: name, found: found, lines: lines{data: data}, keys: map[*Node]map[string]*Node{}}
	tree := p.document(data)
	if tree == nil || p.twice {
		return tree
	}
	// The parser above checks only the grammar. The decoder finds duplicate definitions and invalid
	// numbers.
	var whole map[string]any
	if err := toml.Unmarshal(data, &whole); err != nil {
		problem := policy.Problem{Path: "toml", Place: name, Why: Cut(err.Error())}
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			line, _ := decode.Position()
			problem.Place, problem.Why = placeAt(name, line), Cut(strings.TrimPrefix(err.Error(), "toml: "))
		}
		found.Add(problem)
		return nil
	}
	return tree
}

type tomlParser struct {
	name   string
	parser unstable.Parser
	lines  lines
	found  *Report
	// the keys of the open tables, so that wide tables are not searched
	keys map[*Node]map[string]*Node
	// a value nested too deeply, or a table that is too wide, has been reported
	stop  bool
	twice bool // there is a duplicate key; the decoder will report it
}

func (p *tomlParser) document(data []byte) *Node {
	root := Map(placeAt(p.name, 1))
	table := root
	p.parser.Reset(data)
	for p.parser.NextExpression() {
		expression := p.parser.Expression()
		switch expression.Kind {
		case unstable.Table:
			table = p.table(root, expression, false)
		case unstable.ArrayTable:
			table = p.table(root, expression, true)
		case unstable.KeyValue:
			p.pair(table, expression, 0)
		}
		if p.stop {
			return nil
		}
	}
	if err := p.parser.Error(); err != nil {
		problem := policy.Problem{Path: "toml", Place: p.name, Why: Cut(err.Error())}
		var syntax *unstable.ParserError
		if errors.As(err, &syntax) {
			problem.Place = placeAt(p.name, p.lines.of(cap(data)-cap(syntax.Highlight)))
		}
		p.found.Add(problem)
		return nil
	}
	return root
}

// tomlParser.place returns the position of a key or a simple value.
func (p *tomlParser) place(n *unstable.Node) string {
	return placeAt(p.name, p.lines.of(int(n.Raw.Offset)))
}

// tomlParser.table returns the table that [a.b] or [[a.b]] opens. It adds missing tables on the
// path.
func (p *tomlParser) table(root *Node, header *unstable.Node, element bool) *Node {
	table, depth := root, 0
	for keys := header.Key(); keys.Next(); depth++ {
		key := keys.Node()
		place := p.place(key)
		if depth > depthMax {
			p.tooDeep(place)
			return table
		}
		next := p.get(table, string(key.Data))
		last := keys.IsLast()
		switch {
		case last && element:
			if next == nil || next.Kind != KindList {
				next = List(place)
				p.set(table, string(key.Data), place, next)
			}
			item := Map(place)
			next.Items = append(next.Items, item)
			table = item
			continue
		case next != nil && next.Kind == KindList && len(next.Items) > 0:
			next = next.Items[len(next.Items)-1]
		}
		if next == nil || next.Kind != KindMap {
			next = Map(place)
			p.set(table, string(key.Data), place, next)
		}
		table = next
	}
	return table
}

// tomlParser.pair adds a key, which may have dots, and its value to a table.
func (p *tomlParser) pair(table *Node, from *unstable.Node, depth int) {
	for keys := from.Key(); keys.Next(); depth++ {
		key := keys.Node()
		place, name := p.place(key), string(key.Data)
		if depth > depthMax {
			p.tooDeep(place)
			return
		}
		if keys.IsLast() {
			p.set(table, name, place, p.value(from.Value(), place, depth))
			return
		}
		next := p.get(table, name)
		if next == nil || next.Kind != KindMap {
			next = Map(place)
			p.set(table, name, place, next)
		}
		table = next
	}
}

func (p *tomlParser) get(table *Node, key string) *Node { return p.keys[table][key] }

func (p *tomlParser) set(table *Node, key, place string, value *Node) {
	if p.keys[table] == nil {
		p.keys[table] = map[string]*Node{}
	}
	p.twice = p.twice || p.keys[table][key] != nil
	if len(table.Entries) == keysMax && !p.stop {
		p.stop = true
		p.found.Add(wideProblem("toml", place))
	}
	p.keys[table][key] = value
	table.Set(key, place, value)
}

// tomlParser.value reads a value. The parser has no position for lists, so they get their key's
// position.
func (p *tomlParser) value(from *unstable.Node, place string, depth int) *Node {
	n := &Node{Place: place}
	if depth >= depthMax {
		p.tooDeep(place)
		return n
	}
	switch from.Kind {
	case unstable.Array:
		n.Kind = KindList
		for items := from.Children(); items.Next(); {
			n.Items = append(n.Items, p.value(items.Node(), place, depth+1))
		}
		return n
	case unstable.InlineTable:
		n.Kind, n.Place = KindMap, p.place(from)
		for pairs := from.Children(); pairs.Next(); {
			p.pair(n, pairs.Node(), depth+1)
		}
		return n
	case unstable.String:
		n.Kind, n.Text = KindWord, string(from.Data)
	case unstable.Bool:
		n.Kind, n.Text = KindBool, string(from.Data)
	case unstable.Integer:
		n.Kind, n.Text = KindNumber, plainInteger(string(from.Data))
	case unstable.DateTime, unstable.LocalDateTime, unstable.LocalDate, unstable.LocalTime:
		n.Kind, n.Text = KindDate, string(from.Data)
	default: // a float; only events.admitted accepts one
		n.Kind, n.Text = KindNumber, string(from.Data)
	}
	n.Place = p.place(from)
	return n
}

// plainInteger converts an integer of TOML, such as 1_000, +5 or 0x1F, to decimal digits.
func plainInteger(text string) string {
	value, err := strconv.ParseInt(strings.TrimPrefix(text, "+"), 0, 64)
	if err != nil {
		return text
	}
	return fmt.Sprint(value)
}

func (p *tomlParser) tooDeep(place string) {
	if !p.stop {
		p.stop = true
		p.found.Add(deepProblem("toml", place))
	}
}
