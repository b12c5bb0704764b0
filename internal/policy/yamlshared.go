// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/penstock/penstock/core"
)

// sharedMax is how many nodes the aliases of a document may stand for together: ten anchors, each of ten aliases of the one
// before, are ten billion.
const sharedMax = 100_000

// shared is what a document may use that is no policy: anchors, aliases, merge keys, and the tags of YAML itself.
type shared struct {
	anchors map[string]*Node
	used    int // nodes that aliases stand for so far
}

// SharedTree reads YAML as Tree does, but of a document in which anchors, aliases, merge keys and YAML's own tags are
// resolved, and where words and bools are as they are written. What readers of YAML take differently is a problem: a merge key
// behind words that it merges, or beside a block that is in what it merges too.
func SharedTree(name string, data []byte) (*Node, error) {
	found := &report{}
	tree, err := parseText(name, data, found, func(name string, data []byte, found *report) *Node {
		return parseYAMLWith(&yamlParser{name: name, found: found, shared: &shared{anchors: map[string]*Node{}}}, data)
	})
	if err == nil {
		err = found.err()
	}
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// resolve returns what an anchor, alias or tag stands for; nil where that was reported.
func (p *yamlParser) resolve(from ast.Node, line, depth int) *Node {
	switch from := from.(type) {
	case *ast.AnchorNode:
		return p.anchor(from, line, depth)
	case *ast.AliasNode:
		return p.alias(from, line)
	case *ast.TagNode:
		return p.tagged(from, line, depth)
	}
	p.refuse(from, line)
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
		p.problem(line, "*"+name, "is an alias of no anchor before it", `put it in quotes if a star is meant: "*`+cut(name)+`"`)
		return nil
	}
	if p.shared.used += value.size(sharedMax + 1 - p.shared.used); p.shared.used > sharedMax {
		p.problem(line, "*"+name, fmt.Sprintf("is one alias too many: together they stand for more than %d words", sharedMax), "write them out")
		return nil
	}
	return value
}

// size returns how many nodes the node and what is in it are, or at least most.
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

// tagged returns a value whose tag says what it is anyway, or makes it a word.
func (p *yamlParser) tagged(from *ast.TagNode, line, depth int) *Node {
	tag := from.GetToken().Value
	if from.Value == nil {
		p.problem(line, tag, "is a tag of nothing", "leave it out")
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
		p.problem(line, tag, "is a tag that does not say what follows it", "leave it out")
		return nil
	}
	return value
}

// merge adds the entries of the blocks that a merge key names, of several the first that has a word. The words beside the key
// count before them.
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
			p.problem(line, "<<", "merges "+block.Kind.String()+" where a block of words belongs", "name the anchor of a block")
			return
		}
		if len(n.Entries)+len(block.Entries) > keysMax {
			p.found.add(wideProblem("yaml", placeAt(p.name, line)))
			return
		}
		for _, e := range block.Entries {
			switch at := n.index(e.Key); {
			case at < 0:
				n.Entries = append(n.Entries, Entry{Key: e.Key, Place: e.Place, Value: e.Value, merged: true})
			case at < own:
				p.problem(line, e.Key, "stands before << and in what it merges, and readers of YAML differ on which counts",
					"put << first in its block")
			}
		}
	}
}

// index returns where a word is in a block, -1 for nowhere.
func (n *Node) index(key string) int {
	for i := range n.Entries {
		if n.Entries[i].Key == key {
			return i
		}
	}
	return -1
}

// set adds an entry to a block. What was merged before gives way.
func (p *yamlParser) set(n *Node, key string, line int, value *Node) {
	place := placeAt(p.name, line)
	at := n.index(key)
	if p.shared == nil || at < 0 || !n.Entries[at].merged {
		n.Set(key, place, value)
		return
	}
	if n.Entries[at].Value.Kind == KindMap && value.Kind == KindMap {
		p.found.add(core.Problem{Path: "yaml", Place: place, Value: key,
			Why: "is a block that << merges too, and readers of YAML differ on whether both count", Remedy: "write it out, without <<"})
	}
	n.Entries[at] = Entry{Key: key, Place: place, Value: value}
}
