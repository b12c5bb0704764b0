// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// pathTrie finds the path patterns that match, segment by segment. The trie's texts are folded. So
// a pattern that is case-sensitive, or strict about the trailing slash, is only a candidate and
// must be compared.
//
// A search keeps a set of nodes and moves all of them by one segment at each step, so ** needs no
// backtracking. The work is at most the number of segments times the number of active nodes, for
// any path. Each segment is hashed at most once, for the nodes with many literals.
type pathTrie struct {
	nodes    []trieNode       // the first is the root
	literals map[string]int32 // numbers of the literal texts, from 1
}

// trieNode represents the patterns that begin with the same segments. Its edges lead to the nodes
// for the next segment. A node or list number of 0 means none.
type trieNode struct {
	literals []trieEdge  // by next segment, in ascending order of their numbers
	prefixes prefixTable // by prefix of the next segment
	one      int32       // for any next segment
	many     int32       // for any number of segments; that node stays active
	// the patterns that match if the path ends here, or, if an edge many leads here, whatever
	// follows
	list int32
}

// trieEdge is the transition to the next node for a literal segment.
type trieEdge struct {
	_ slim.Incomparable

	text          string
	literal, next int32
}

// fewTexts is the greatest number of texts that are compared one by one, and fewNodes the greatest
// number of nodes that compare a segment with their texts. So few comparisons are faster than
// hashing the segment.
const (
	fewTexts = 8
	fewNodes = 2
)

// searchedSegment is the segment of the path for which the search looks up successors.
type searchedSegment struct {
	text    string
	hashed  bool
	literal int32 // if hashed, the number of the text, or 0 if no literal equals it
}

// searchedSegment.hash looks up the number of the segment.
func (s *searchedSegment) hash(t *pathTrie) { s.literal, s.hashed = t.literals[s.text], true }

// nodeAfter returns the node that follows if the segment is a literal of the node, or 0. A segment
// that is not hashed is compared with all texts, so there must be few texts.
func (n *trieNode) nodeAfter(s *searchedSegment) int32 {
	edges := n.literals
	if !s.hashed {
		for i := range edges {
			if edges[i].text == s.text {
				return edges[i].next
			}
		}
		return 0
	}
	if s.literal == 0 {
		return 0
	}
	for len(edges) > fewTexts {
		if half := len(edges) / 2; edges[half].literal <= s.literal {
			edges = edges[half:]
		} else {
			edges = edges[:half]
		}
	}
	for i := range edges {
		if edges[i].literal == s.literal {
			return edges[i].next
		}
	}
	return 0
}

// hasAny reports whether a node follows for any segment.
func (n *trieNode) hasAny() bool {
	return n.literals != nil || n.one != 0 || n.prefixes.entries != nil
}

// prefixTable maps prefixes of a text to numbers.
type prefixTable struct {
	entries []prefixEntry
	lengths []int32 // distinct lengths of the prefixes
	numbers map[string]int32
}

type prefixEntry struct {
	_ slim.Incomparable

	prefix string
	number int32
}

// prefixTable.lookups returns the number of calls of lookup that are needed to find all prefixes of
// a text.
func (t *prefixTable) lookups() int {
	if len(t.entries) <= fewTexts {
		return len(t.entries)
	}
	return len(t.lengths)
}

// prefixTable.lookup returns the number of a prefix of the text, or 0.
func (t *prefixTable) lookup(i int, text string) int32 {
	if len(t.entries) > fewTexts {
		if length := int(t.lengths[i]); length <= len(text) {
			return t.numbers[text[:length]]
		}
	} else if entry := &t.entries[i]; strings.HasPrefix(text, entry.prefix) {
		return entry.number
	}
	return 0
}

// pathTrie.insert adds the list under a pattern's path.
func (t *pathTrie) insert(segments []segment, list int32) {
	if t.nodes == nil {
		t.nodes = make([]trieNode, 1)
	}
	at := int32(0)
	for i := range segments {
		next := t.next(at, &segments[i])
		if next == 0 {
			next = int32(len(t.nodes))
			t.nodes = append(t.nodes, trieNode{})
			t.link(at, next, &segments[i])
		}
		at = next
	}
	t.nodes[at].list = list
}

func (t *pathTrie) next(at int32, s *segment) int32 {
	n := &t.nodes[at]
	switch s.kind {
	case segmentLiteral:
		text := searchedSegment{text: foldedText(s.text)}
		text.hash(t)
		return n.nodeAfter(&text)
	case segmentPrefix:
		return n.prefixes.numbers[foldedText(s.text)]
	case segmentOne:
		return n.one
	default:
		return n.many
	}
}

func (t *pathTrie) link(at, next int32, s *segment) {
	n := &t.nodes[at]
	switch s.kind {
	case segmentLiteral:
		text := foldedText(s.text)
		n.addEdge(trieEdge{text: text, literal: t.number(text), next: next})
	case segmentPrefix:
		n.prefixes.set(foldedText(s.text), next)
	case segmentOne:
		n.one = next
	default:
		n.many = next
	}
}

// pathTrie.number returns the number of a literal, and assigns one if the literal has none.
func (t *pathTrie) number(text string) int32 {
	if t.literals == nil {
		t.literals = make(map[string]int32)
	}
	if t.literals[text] == 0 {
		t.literals[text] = int32(len(t.literals) + 1)
	}
	return t.literals[text]
}

// addEdge inserts an edge in order.
func (n *trieNode) addEdge(edge trieEdge) {
	n.literals = append(n.literals, edge)
	at := len(n.literals) - 1
	for ; at > 0 && n.literals[at-1].literal > edge.literal; at-- {
		n.literals[at] = n.literals[at-1]
	}
	n.literals[at] = edge
}

func foldedText(s string) string { return string(appendFolded(nil, s)) }

// prefixTable.set adds a prefix, which must be new.
func (t *prefixTable) set(prefix string, number int32) {
	if t.numbers == nil {
		t.numbers = make(map[string]int32)
	}
	t.numbers[prefix] = number
	t.entries = append(t.entries, prefixEntry{prefix: prefix, number: number})
	if length := int32(len(prefix)); !slices.Contains(t.lengths, length) {
		t.lengths = append(t.lengths, length)
	}
}

// pathSearch holds the working memory of a search, reused between requests.
type pathSearch struct {
	now, next []int32 // active nodes for this segment and the next
	open      []int32 // active nodes of ** patterns, which stay active
	lists     []int32 // the lists found so far
	seen      stamps
}

// stamps is a set of numbers that can be cleared in constant time.
type stamps struct {
	round uint32
	marks []uint32 // the round in which each number was last marked
}

// stamps.start clears all marks and makes room for numbers below n.
func (s *stamps) start(n int) {
	if len(s.marks) < n {
		s.marks = make([]uint32, n)
		s.round = 0
	}
	s.round++
	if s.round == 0 {
		clear(s.marks)
		s.round = 1
	}
}

// markNumber marks the number and reports whether it was unmarked before.
func (s *stamps) markNumber(number int32) bool {
	fresh := s.marks[number] != s.round
	s.marks[number] = s.round
	return fresh
}

// pathTrie.find stores in search.lists the lists of all patterns that match the folded path. A list
// can occur several times.
func (t *pathTrie) find(search *pathSearch, path string) {
	search.seen.start(len(t.nodes))
	search.now, search.open, search.lists = search.now[:0], search.open[:0], search.lists[:0]
	search.now = t.activate(search, search.now, 0)
	at := 0
	for !pathEnds(path, at) && len(search.now)+len(search.open) > 0 {
		var s searchedSegment
		if s.text, at = segmentAt(path, at); len(search.open)+len(search.now) > fewNodes {
			s.hash(t)
		}
		next := search.next[:0]
		for _, node := range search.open { // not those that this segment adds to open
			next = t.moveNode(search, next, node, &s)
		}
		for _, node := range search.now {
			next = t.moveNode(search, next, node, &s)
		}
		search.now, search.next = next, search.now
	}
	if !pathEnds(path, at) {
		return // no node is active any more
	}
	for _, node := range search.now {
		if list := t.nodes[node].list; list != 0 {
			search.lists = append(search.lists, list)
		}
	}
}

// moveNode moves one active node by one segment, and appends the nodes that follow.
func (t *pathTrie) moveNode(search *pathSearch, next []int32, node int32, s *searchedSegment) []int32 {
	n := &t.nodes[node]
	if len(n.literals) > fewTexts && !s.hashed {
		s.hash(t)
	}
	if follows := n.nodeAfter(s); follows != 0 {
		next = t.activate(search, next, follows)
	}
	if n.one != 0 {
		next = t.activate(search, next, n.one)
	}
	for i := range n.prefixes.lookups() {
		if follows := n.prefixes.lookup(i, s.text); follows != 0 {
			next = t.activate(search, next, follows)
		}
	}
	return next
}

// pathTrie.activate activates a node, and with it the node for any number of segments after it.
func (t *pathTrie) activate(search *pathSearch, nodes []int32, node int32) []int32 {
	n := &t.nodes[node]
	if n.many != 0 && search.seen.markNumber(n.many) {
		many := &t.nodes[n.many]
		if many.list != 0 {
			search.lists = append(search.lists, many.list)
		}
		if many.hasAny() {
			search.open = append(search.open, n.many)
		}
	}
	if n.list == 0 && !n.hasAny() {
		return nodes
	}
	return append(nodes, node)
}
