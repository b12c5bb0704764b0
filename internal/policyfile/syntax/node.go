// SPDX-License-Identifier: Apache-2.0

package syntax

// Kind is the kind of a [Node].
type Kind uint8

// The kinds of nodes.
const (
	KindNull   Kind = iota // a key without a value
	KindWord               // a string, in a format with types, such as YAML
	KindNumber             // a number, as it was written
	KindBool               // "true" or "false"
	// a string, a number or a bool, in a format without types, such as the Caddyfile
	KindText
	KindDate // a date, as written, in a format with a type for dates
	KindList
	KindMap
)

func (k Kind) String() string {
	return [...]string{"nothing", "a string", "a number", "true or false", "a string", "a date", "a list",
		"a block of fields"}[k]
}

// Node is a part of a document with its position. All formats are parsed into nodes, and one
// decoder reads the nodes. The zero Node is a value that was omitted.
type Node struct {
	Kind    Kind
	Text    string  // of a word, number, bool or text: as written, without quotes
	Items   []*Node // of a list
	Entries []Entry // of a map, in the order of the document
	Place   string  // "policy.yaml:12"; "" if unknown
}

// Entry is one key of a map with its value.
type Entry struct {
	Key   string
	Place string // of the key
	Value *Node

	merged bool // from another block, by a merge key
}

// Text returns a node of untyped text.
func Text(place, text string) *Node { return &Node{Kind: KindText, Text: text, Place: place} }

// Texts returns a list of untyped text.
func Texts(place string, texts ...string) *Node {
	list := &Node{Kind: KindList, Place: place}
	for _, text := range texts {
		list.Items = append(list.Items, Text(place, text))
	}
	return list
}

// List returns a list node.
func List(place string, items ...*Node) *Node {
	return &Node{Kind: KindList, Items: items, Place: place}
}

// Map returns an empty map node.
func Map(place string) *Node { return &Node{Kind: KindMap, Place: place} }

// Set appends an entry to a map node and returns the node. The decoder reports a key that was set
// twice.
func (n *Node) Set(key, place string, value *Node) *Node {
	n.Entries = append(n.Entries, Entry{Key: key, Place: place, Value: value})
	return n
}

// Get returns the value of a map node's first entry with that key, or nil.
func (n *Node) Get(key string) *Node {
	for i := range n.Entries {
		if n.Entries[i].Key == key {
			return n.Entries[i].Value
		}
	}
	return nil
}
