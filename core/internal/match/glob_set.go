// SPDX-License-Identifier: Apache-2.0

package match

// globSet finds out whether a value matches one of many globs. A globSet searches for the pieces of
// all globs in one pass over the value, with an Aho-Corasick automaton. So the work is at most
// proportional to the bytes of the value plus those of the globs, except that each occurrence of a
// piece that ends in n other pieces takes n further steps. A globSet is immutable.
type globSet struct {
	globs []glob
	// nodes is a hash table by globNode.key. The automaton has at most one node for each byte of
	// the globs, so the table takes at most 48 bytes for it. Node 0 is the root.
	nodes []globNode
	// steps holds the states of the pieces of each glob, and a 0 after them. The first and the last
	// piece of a glob are left out, and so are empty ones.
	steps []uint32
	start []globState // at the start of a value
}

// globNode is a node of a trie: the first bytes of some pieces.
type globNode struct {
	key   uint32 // the node before it and the last byte, plus 1; 0 for no node
	fail  uint32 // the node of the longest suffix that has one
	piece uint32 // the state of the longest piece that ends here; 0 for none
}

// globState is the state of a glob or of a piece during a search. State 0 belongs to no piece, the
// next states to the globs, and the rest to the pieces. The numbers are small: values have at most
// [FieldBytesMax] bytes, and a list has at most [MatchListMax] globs of [AttrStarsMax] stars.
type globState struct {
	// of a glob: the index in steps of the piece for which the glob waits; of a piece: the longest
	// other piece that ends in it, 0 for none
	step uint16
	// of a glob: the offset in the value from which on the piece counts; of a piece: its length
	bytes uint16
	// of a glob: the next glob that waits for the same piece; of a piece: the first one; 0 for none
	next uint16
}

// globSet.matches reports whether one of the globs matches the value, which is not too long. The
// argument states is working memory, reused between requests. For each glob, globSet.matches uses
// the first occurrence of each piece, which leaves the most text for the other pieces. So each glob
// moves on at most once for each of its pieces. A glob is passed over if the piece for which it
// waits occurs too early, at most once for each byte of its pieces.
func (s *globSet) matches(states *[]globState, value string) bool {
	if len(*states) < len(s.start) {
		*states = make([]globState, len(s.start))
	}
	all := *states
	copy(all, s.start)
	for g := all[0].next; g != 0; g = all[g].next {
		if s.globs[g-1].matches(value) {
			return true
		}
	}
	node := uint32(0)
	for i := range len(value) {
		node = s.nodeAfter(node, value[i], false)
		for p := s.nodes[node].piece; p != 0; p = uint32(all[p].step) {
			if s.advance(all, p, value, i+1) {
				return true
			}
		}
	}
	return false
}

// globSet.advance moves on each glob that waits for the piece with state p, of which an occurrence
// ends at the given offset in the value. It returns true if a glob matches.
func (s *globSet) advance(all []globState, p uint32, value string, end int) bool {
	piece := &all[p]
	g := piece.next
	for piece.next = 0; g != 0; {
		state, awaited := &all[g], p
		next := state.next
		if int(state.bytes)+int(piece.bytes) <= end {
			state.step, state.bytes = state.step+1, uint16(end)
			if awaited = s.steps[state.step]; awaited == 0 && s.globs[g-1].encloses(value, end) {
				return true
			}
		}
		first := &all[awaited].next
		state.next, *first = *first, g
		g = next
	}
	return false
}

// nodeAfter returns the node after a node and a byte. If no such node exists, it returns the node
// of the longest suffix or, if add is true, the empty place in nodes for the new node.
//
//go:noinline
func (s *globSet) nodeAfter(node uint32, label byte, add bool) uint32 {
	const golden = 0x9e3779b1 // multiplication by this constant spreads the bits
	for {
		key := node<<8 + uint32(label) + 1
		for at := key * golden >> 8; ; at++ {
			at &= uint32(len(s.nodes) - 1)
			found := s.nodes[at].key
			if found == key || found == 0 && add {
				return at
			}
			if found == 0 {
				break
			}
		}
		if node == 0 {
			return 0
		}
		node = s.nodes[node].fail
	}
}

// newGlobSet returns a set that searches for all the globs at once. It returns nil for few globs,
// and for globs without a piece between stars.
func newGlobSet(globs []glob) *globSet {
	if len(globs) <= fewValues {
		return nil
	}
	pieces, bytes, size := 1, 1, 1
	for _, g := range globs {
		for _, text := range g {
			pieces++
			bytes += len(text)
		}
	}
	for size < 2*bytes {
		size *= 2
	}
	s := &globSet{globs, make([]globNode, size), make([]uint32, pieces), make([]globState, len(globs)+pieces)}
	s.nodes[0].key = 1<<32 - 1 // occupied, but no search finds the root: it follows no node
	states := len(globs) + 1
	for length := 1; length > 0; {
		length, states = s.addNodes(length, states)
	}
	if states == len(globs)+1 { // no piece is searched for
		return nil
	}
	s.start = s.start[:states]
	for g := range globs {
		state := &s.start[g+1]
		awaited := &s.start[s.steps[state.step]]
		state.next, awaited.next = awaited.next, uint16(g+1)
	}
	return s
}

// addNodes adds the nodes for beginnings of pieces of a length, after those of shorter ones, and
// the states of the pieces of that length. Until a piece has its state, its step is the node of its
// beginning. The result next is the next length, 0 if no piece is longer.
func (s *globSet) addNodes(length, states int) (next, after int) {
	step := 0
	for at, g := range s.globs {
		s.start[at+1].step, s.start[at+1].bytes = uint16(step), uint16(len(g[0]))
		for i, text := range g {
			last := i == len(g)-1
			if (i == 0 || text == "") && !last {
				continue
			}
			step++
			if last || len(text) < length {
				continue
			}
			next = length + 1
			from, label := s.steps[step-1], text[length-1]
			to := s.nodeAfter(from, label, true)
			n := &s.nodes[to]
			if n.key == 0 {
				if from != 0 {
					n.fail = s.nodeAfter(s.nodes[from].fail, label, false)
				}
				n.key, n.piece = from<<8+uint32(label)+1, s.nodes[n.fail].piece
			}
			if len(text) == length {
				if int(s.start[n.piece].bytes) != length {
					s.start[states] = globState{step: uint16(n.piece), bytes: uint16(length)}
					n.piece = uint32(states)
					states++
				}
				to = n.piece
			}
			s.steps[step-1] = to
		}
	}
	return next, states
}
