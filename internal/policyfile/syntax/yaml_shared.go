// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/penstock/penstock/core/policy"
)

// sharedMax is the greatest total number of nodes to which the aliases of a document expand. Ten
// anchors, each with ten aliases of the previous one, would expand to ten billion.
const sharedMax = 100_000

// anchorSet holds the anchors of a document that is not a policy. Such a document can use anchors,
// aliases, merge keys and YAML's own tags.
type anchorSet struct {
	anchors map[string]*Node
	used    int // the nodes that aliases have expanded to so far
}

// SharedTree reads YAML as Tree does, but resolves anchors, aliases, merge keys and YAML's own
// tags, and keeps words and bools as written. SharedTree reports two constructs that YAML parsers
// interpret differently: a merge key after keys that it merges, and a block that is also in a
// merged block.
func SharedTree(name string, data []byte) (*Node, error) {
	found := &Report{}
	tree, err := parseText(name, data, found, func(name string, data []byte, found *Report) *Node {
		return parseYAMLWith(&yamlParser{name: name, found: found, shared: &anchorSet{anchors: map[string]*Node{}}}, data)
	})
	if err == nil {
		err = found.Err()
	}
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// yamlParser.resolve returns the value of an anchor, alias or tag; nil if it reported a problem.
func (p *yamlParser) resolve(from ast.Node, line, depth int) *Node {
	switch from := from.(type) {
	case *ast.AnchorNode:
		return p.anchor(from, line, depth)
	case *ast.AliasNode:
		return p.alias(from, line)
	case *ast.TagNode:
		return p.tagged(from, line, depth)
	}
	p.reject(from, line)
	return nil
}

func (p *yamlParser) anchor(from *ast.AnchorNode, line, depth int) *Node {
	var value *Node
	if from.Value == nil {
		value = &Node{Place: placeAt(p.name, line)}
	} else {
		value = p.value(from.Value, depth+1)
	}
	if value != nil && from.Name != nil {
		p.shared.anchors[from.Name.GetToken().Value] = value
	}
	return value
}

func (p *yamlParser) alias(from *ast.AliasNode, line int) *Node {
	name := ""
	if from.Value != nil {
		name = from.Value.GetToken().Value
	}
	value, known := p.shared.anchors[name]
	if !known {
		p.problem(line, "*"+name, "is an alias of no anchor before it", `put it in quotes if you mean a star: "*`+Cut(name)+`"`)
		return nil
	}
	if p.shared.used += value.size(sharedMax + 1 - p.shared.used); p.shared.used > sharedMax {
		p.problem(line, "*"+name, fmt.Sprintf("is one alias too many: all together expand to more than %d values", sharedMax), "write them out")
		return nil
	}
	return value
}

// Node.size counts the node and all nodes in it, but may stop counting at the given maximum.
func (n *Node) size(most int) int {
	size := 1
	for i := 0; i < len(n.Items) && size < most; i++ {
		size += n.Items[i].size(most - size)
	}
	for i := 0; i < len(n.Entries) && size < most; i++ {
		size += n.Entries[i].Value.size(most - size)
	}
	return size
}

// yamlParser.tagged returns the value of a tag that confirms the value's type or makes it a word.
func (p *yamlParser) tagged(from *ast.TagNode, line, depth int) *Node {
	tag := from.GetToken().Value
	if from.Value == nil {
		p.problem(line, tag, "is a tag without a value", "leave it out")
		return nil
	}
	value := p.value(from.Value, depth+1)
	if value == nil {
		return nil
	}
	scalar := value.Kind != KindList && value.Kind != KindMap && value.Kind != KindNull
	fits := false
	switch tag {
	case "!!str":
		fits = scalar
		value = &Node{Kind: KindWord, Text: value.Text, Place: value.Place}
	case "!!int":
		fits = value.Kind == KindNumber
	case "!!bool":
		fits = scalar && value.Kind != KindNumber
	case "!!map":
		fits = value.Kind == KindMap
	case "!!seq":
		fits = value.Kind == KindList
	case "!!null":
		fits = value.Kind == KindNull
	}
	if !fits {
		p.problem(line, tag, "is a tag that does not fit its value", "leave it out")
		return nil
	}
	return value
}

// yamlParser.merge adds the entries of the blocks that a merge key names. If several of them have a
// key, the first counts. The block's own keys take precedence over all of them.
func (p *yamlParser) merge(n *Node, pair *ast.MappingValueNode, line, depth int) {
	from := p.value(pair.Value, depth+1)
	if from == nil {
		return
	}
	blocks := []*Node{from}
	if from.Kind == KindList {
		blocks = from.Items
	}
	own := len(n.Entries)
	for _, block := range blocks {
		if block.Kind != KindMap {
			p.problem(line, "<<", "merges "+block.Kind.String()+" where a block of fields belongs", "name the anchor of a block")
			return
		}
		if len(n.Entries)+len(block.Entries) > keysMax {
			p.found.Add(wideProblem("yaml", placeAt(p.name, line)))
			return
		}
		for _, e := range block.Entries {
			switch at := n.index(e.Key); {
			case at < 0:
				n.Entries = append(n.Entries, Entry{Key: e.Key, Place: e.Place, Value: e.Value, merged: true})
			case at < own:
				p.problem(line, e.Key, "is before << and also in the merged block, and YAML parsers differ on which one counts",
					"put << first in its block")
			}
		}
	}
}

// Node.index returns the index of a key in a block, -1 if it is missing.
func (n *Node) index(key string) int {
	for i := range n.Entries {
		if n.Entries[i].Key == key {
			return i
		}
	}
	return -1
}

// yamlParser.set adds an entry to a block. It replaces an entry that was merged before.
func (p *yamlParser) set(n *Node, key string, line int, value *Node) {
	place := placeAt(p.name, line)
	at := n.index(key)
	if p.shared == nil || at < 0 || !n.Entries[at].merged {
		n.Set(key, place, value)
		return
	}
	if n.Entries[at].Value.Kind == KindMap && value.Kind == KindMap {
		p.found.Add(policy.Problem{Path: "yaml", Place: place, Value: key,
			Why: "is a block that << merges as well, and YAML parsers differ on whether both count", Remedy: "write it out, without <<"})
	}
	n.Entries[at] = Entry{Key: key, Place: place, Value: value}
}
