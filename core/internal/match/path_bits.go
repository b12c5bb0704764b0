// SPDX-License-Identifier: Apache-2.0

package match

import (
	"math/bits"
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// bitNodesMax is the greatest number of nodes of a trie that is searched by sets of bits.
const bitNodesMax = 64

// bitTrie is a small pathTrie in another form, which is searched several times faster. A set of
// nodes is a number with a bit for each node, so a segment of the path moves all active nodes at
// once. Most policies have a small trie.
type bitTrie struct {
	nodes    []bitNode
	one      uint64    // the nodes after any one segment
	prefixed uint64    // the nodes after a segment with a prefix
	ended    uint64    // the nodes with a pattern that ends in any number of further segments
	texts    []bitText // the literals; the first stands for no literal
	heads    [64]uint8 // the first of the texts with a hash, 0 if there is none
}

// bitNode is a node and what can follow it.
type bitNode struct {
	_ slim.Incomparable

	next   uint64 // the nodes that can follow it
	later  uint64 // the nodes of next that can also follow after any number of further segments
	list   int32  // the patterns that match if the path ends here
	ends   int32  // the patterns that match, whatever follows
	prefix string // of the segment that leads here, if the node is in bitTrie.prefixed
}

// bitText is a literal segment.
type bitText struct {
	_ slim.Incomparable

	text  string
	nodes uint64 // the nodes to which the segment leads
	after uint8  // the next text with the same hash, 0 if there is none
}

// packedTrie returns the trie in the form of sets of bits, or nil if the trie is empty or too
// large.
func (t *pathTrie) packedTrie() *bitTrie {
	if len(t.nodes) == 0 || len(t.nodes) > bitNodesMax {
		return nil
	}
	b := &bitTrie{nodes: make([]bitNode, len(t.nodes)), texts: make([]bitText, len(t.literals)+1)}
	for i := range t.nodes {
		from, n := &t.nodes[i], &b.nodes[i]
		n.list, n.next = from.list, b.nodesAfter(from)
		if from.many == 0 {
			continue
		}
		many := &t.nodes[from.many]
		n.later = b.nodesAfter(many)
		n.next |= n.later
		if n.ends = many.list; n.ends != 0 {
			b.ended |= 1 << i
		}
	}
	return b
}

// nodesAfter returns the nodes to which one segment leads from a node, and records these segments.
func (b *bitTrie) nodesAfter(n *trieNode) (nodes uint64) {
	for i := range n.literals {
		edge := &n.literals[i]
		text := &b.texts[edge.literal]
		if text.nodes == 0 { // it is new
			head := &b.heads[hashSegment(edge.text)]
			text.text, text.after, *head = edge.text, *head, uint8(edge.literal)
		}
		text.nodes |= 1 << edge.next
		nodes |= 1 << edge.next
	}
	for i := range n.prefixes.entries {
		entry := &n.prefixes.entries[i]
		b.nodes[entry.number].prefix = entry.prefix
		b.prefixed |= 1 << entry.number
		nodes |= 1 << entry.number
	}
	if n.one != 0 {
		b.one |= 1 << n.one
		nodes |= 1 << n.one
	}
	return nodes
}

// hashSegment returns a hash of a segment, below 64.
func hashSegment(text string) uint8 {
	if text == "" {
		return 0
	}
	return (uint8(len(text)) + text[0]*5 + text[len(text)-1]) % 64
}

// leadsTo returns the nodes to which a segment leads.
func (b *bitTrie) leadsTo(segment string) uint64 {
	for i := b.heads[hashSegment(segment)]; i != 0; i = b.texts[i].after {
		if b.texts[i].text == segment {
			return b.texts[i].nodes
		}
	}
	return 0
}

// bitTrie.find finds the same patterns as the method find of pathTrie.
func (b *bitTrie) find(search *pathSearch, path string) {
	search.lists = search.lists[:0]
	active, later, ended := uint64(1), uint64(0), uint64(0) // the first node is the root
	for at := 0; ; {
		next := later
		for left := active; left != 0; left &= left - 1 {
			n := &b.nodes[bits.TrailingZeros64(left)]
			next |= n.next
			later |= n.later
		}
		for left := active & b.ended &^ ended; left != 0; left &= left - 1 {
			search.lists = append(search.lists, b.nodes[bits.TrailingZeros64(left)].ends)
		}
		ended |= active & b.ended
		if pathEnds(path, at) {
			break
		}
		if next == 0 {
			return
		}
		var segment string
		segment, at = segmentAt(path, at)
		active = next & (b.one | b.leadsTo(segment))
		for left := next & b.prefixed; left != 0; left &= left - 1 {
			if strings.HasPrefix(segment, b.nodes[bits.TrailingZeros64(left)].prefix) {
				active |= left & -left
			}
		}
	}
	for left := active; left != 0; left &= left - 1 {
		if list := b.nodes[bits.TrailingZeros64(left)].list; list != 0 {
			search.lists = append(search.lists, list)
		}
	}
}
