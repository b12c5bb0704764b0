// SPDX-License-Identifier: Apache-2.0

package core

// pathTrie finds the path patterns that match, by segment. Texts are folded: a case-sensitive pattern, or one that
// minds the trailing slash, is a candidate that must be compared itself.
//
// It is walked as a set of nodes, all of them one segment further at each step, so that ** costs no going back: the work
// is at most the path's segments times the nodes that are in play, whatever the path.
type pathTrie struct {
	nodes []trieNode // the first is the root
}

// trieNode is where some patterns are after some segments. Node and list numbers are 0 for none.
type trieNode struct {
	literals map[string]int32 // by the next segment
	prefixes prefixTable      // by what the next segment starts with
	one      int32            // whatever the next segment is
	many     int32            // from here on any number of segments: that node stays in play
	list     int32            // who matches if the path ends here; of a many node: whatever follows
}

// prefixTable maps what a text starts with to a number.
type prefixTable struct {
	lengths []int32 // of the keys, each once
	numbers map[string]int32
}

// insert lets a pattern's path find the list.
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
		return n.literals[foldedText(s.text)]
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
		if n.literals == nil {
			n.literals = make(map[string]int32)
		}
		n.literals[foldedText(s.text)] = next
	case segmentPrefix:
		n.prefixes.set(foldedText(s.text), next)
	case segmentOne:
		n.one = next
	default:
		n.many = next
	}
}

func foldedText(s string) string { return string(appendFolded(nil, s)) }

func (t *prefixTable) set(prefix string, number int32) {
	if t.numbers == nil {
		t.numbers = make(map[string]int32)
	}
	t.numbers[prefix] = number
	for _, n := range t.lengths {
		if int(n) == len(prefix) {
			return
		}
	}
	t.lengths = append(t.lengths, int32(len(prefix)))
}

// pathSearch is what walking tries needs beside them, kept between requests.
type pathSearch struct {
	now, next []int32 // nodes in play for this segment and the next
	open      []int32 // many nodes in play: they stay
	lists     []int32 // found
	seen      stamps
}

// stamps marks numbers, and forgets all of them at once.
type stamps struct {
	round uint32
	marks []uint32 // the round in which each was marked last
}

// start forgets all marks and makes room for numbers below n.
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

// mark reports whether the number was not yet marked, and marks it.
func (s *stamps) mark(number int32) bool {
	fresh := s.marks[number] != s.round
	s.marks[number] = s.round
	return fresh
}

// find leaves in search.lists the lists of all that match the folded path, some perhaps more than once.
func (t *pathTrie) find(search *pathSearch, path string) {
	search.seen.start(len(t.nodes))
	search.now, search.open, search.lists = search.now[:0], search.open[:0], search.lists[:0]
	search.now = t.enter(search, search.now, 0)
	at := 0
	for !pathEnds(path, at) && len(search.now)+len(search.open) > 0 {
		var text string
		text, at = segmentAt(path, at)
		search.next = search.next[:0]
		for _, node := range search.open { // not what comes into play by this segment
			t.step(search, node, text)
		}
		for _, node := range search.now {
			t.step(search, node, text)
		}
		search.now, search.next = search.next, search.now
	}
	if !pathEnds(path, at) {
		return // nothing is in play any more
	}
	for _, node := range search.now {
		if list := t.nodes[node].list; list != 0 {
			search.lists = append(search.lists, list)
		}
	}
}

// step takes one node over one segment.
func (t *pathTrie) step(search *pathSearch, node int32, text string) {
	n := &t.nodes[node]
	if n.literals != nil {
		if next, ok := n.literals[text]; ok {
			search.next = t.enter(search, search.next, next)
		}
	}
	if n.one != 0 {
		search.next = t.enter(search, search.next, n.one)
	}
	for _, length := range n.prefixes.lengths {
		if int(length) > len(text) {
			continue
		}
		if next, ok := n.prefixes.numbers[text[:length]]; ok {
			search.next = t.enter(search, search.next, next)
		}
	}
}

// enter brings a node into play, and with it the node for any number of segments after it.
func (t *pathTrie) enter(search *pathSearch, nodes []int32, node int32) []int32 {
	n := &t.nodes[node]
	if n.many != 0 && search.seen.mark(n.many) {
		many := &t.nodes[n.many]
		if many.list != 0 {
			search.lists = append(search.lists, many.list)
		}
		if many.literals != nil || many.one != 0 || many.prefixes.numbers != nil {
			search.open = append(search.open, n.many)
		}
	}
	return append(nodes, node)
}
