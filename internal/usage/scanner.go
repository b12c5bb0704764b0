// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// Bounds of a document.
const (
	depthMax       = 512  // levels of nested containers
	keyBytesMax    = 1600 // length of a name as written: 256 characters, each escaped
	numberBytesMax = 64   // length of a number at a path
)

// scanner reads one JSON document (RFC 8259) in pieces and stores the numbers at the given paths. A
// scanner does not keep the text of the document, only the position in it. If several members have
// the same name, the last one counts.
type scanner struct {
	paths   []path
	state   state
	named   bool    // the string is a member's name
	comma   state   // the state after a comma in the innermost container; broken outside of containers
	outer   []state // the values of comma of the containers around it
	watched bool    // a path leads into the innermost container
	items   []int   // the current items of the containers that a path leads into, the outermost ones
	text    []byte  // what earlier pieces contain of the name or number, if a path might lead to it
}

// path is a place at which a number is looked for, and the number found.
type path struct {
	parts []part
	// matched is the number of parts that the path shares with the current position.
	matched int
	found   bool
	number  []byte
}

// part is the name of a member, or the index of an item.
type part struct {
	name  string
	index int // -1 if the part can only be a name
}

func newScanner(paths []string) scanner {
	s := scanner{paths: make([]path, len(paths))}
	for i, text := range paths {
		for _, name := range slim.Split(text, ".") {
			s.paths[i].parts = append(s.paths[i].parts, part{name, indexOf(name)})
		}
	}
	s.reset()
	return s
}

// indexOf returns the list index that a name denotes, or -1 if it can only be a member of an
// object.
func indexOf(name string) (index int) {
	const digitsMax = 9 // longer than any list
	if name == "" || len(name) > digitsMax || name[0] == '0' && name != "0" {
		return -1
	}
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return -1
		}
		index = index*10 + int(name[i]-'0')
	}
	return index
}

// scanner.reset begins another document.
func (s *scanner) reset() {
	s.state, s.named, s.comma, s.watched = stateValue, false, broken, true
	s.outer = s.outer[:0]
	s.items = s.items[:0]
	s.text = s.text[:0]
	for i := range s.paths {
		p := &s.paths[i]
		p.matched, p.found = 0, false
	}
}

// isComplete reports whether a complete document was written.
func (s *scanner) isComplete() bool {
	return len(s.outer) == 0 && (s.state == stateNext || s.state >= stateZero)
}

// scanner.write parses the next piece of the document. Most bytes take one step in the grammar.
// Names and numbers are read only in containers that a path leads into, so others cost little.
func (s *scanner) write(piece []byte) {
	state, name := s.state, 0 // name is where a member's name begins in the piece, or goes on
	for i := 0; i < len(piece); i++ {
		if state == stateString {
			if i += plainBytes(piece[i:]); i == len(piece) {
				break
			}
		}
		next := grammar[state][piece[i]]
		if next >= stateValue {
			state = next
			continue
		}
		if state >= stateZero && s.watched {
			s.endNumber(piece[:i])
		}
		switch next {
		case actList:
			state = s.push(stateValue, stateItem)
		case actListEnd:
			state = s.pop(stateValue)
		case actObject:
			state = s.push(stateName, stateMember)
		case actObjectEnd:
			state = s.pop(stateName)
		case actComma:
			if state = s.comma; state == stateValue && s.watched {
				s.enterItem()
			}
		case actSpace:
			state = stateNext
		case actName:
			state, s.named, name = stateString, true, i+1
		case actQuote:
			if state = stateNext; s.named {
				state = s.endName(piece[name:i])
			}
		default:
			if s.state = broken; state == tooDeep {
				s.state = tooDeep
			}
			return
		}
	}
	switch s.state = state; {
	case !s.watched:
	case s.named:
		s.note(piece[name:])
	case state >= stateMinus:
		s.note(lastNumber(piece))
	}
}

// plainBytes returns how many bytes of a string precede the next quote, backslash or control
// character. Checking four bytes at a time halves the time in the filter, where jumps are
// expensive.
func plainBytes(piece []byte) (n int) {
	for len(piece)-n >= 4 && isPlain(piece[n]) && isPlain(piece[n+1]) && isPlain(piece[n+2]) && isPlain(piece[n+3]) {
		n += 4
	}
	for n < len(piece) && isPlain(piece[n]) {
		n++
	}
	return n
}

func isPlain(c byte) bool { return c != '"' && c != '\\' && c >= ' ' }

// lastNumber returns the number with which the piece ends. It returns only the end of a number that
// is too long to be at a path.
func lastNumber(piece []byte) []byte {
	i := len(piece)
	for i > 0 && len(piece)-i <= numberBytesMax && strings.IndexByte(digits+"+-.eE", piece[i-1]) >= 0 {
		i--
	}
	return piece[i:]
}

// scanner.note stores a part of a name or a number, at most one byte more than a name can have.
func (s *scanner) note(part []byte) {
	s.text = append(s.text, part[:min(len(part), keyBytesMax+1-len(s.text))]...)
}

// scanner.push enters an object or list that begins, and returns the state for its start: inside.
func (s *scanner) push(comma, inside state) state {
	if len(s.outer) == depthMax {
		return tooDeep
	}
	s.outer = append(s.outer, s.comma)
	s.comma = comma
	if s.watched {
		s.watch()
	}
	return inside
}

// scanner.watch records whether a path can lead into the container that has just begun. Only a path
// with an index can lead into a list.
func (s *scanner) watch() {
	depth := len(s.items)
	for i := range s.paths {
		p := &s.paths[i]
		if p.matched == depth && depth < len(p.parts) && (s.comma == stateName || p.parts[depth].index >= 0) {
			s.items = append(s.items, -1)
			if s.comma == stateValue {
				s.enterItem()
			}
			return
		}
	}
	s.watched = false
}

// scanner.pop leaves the innermost object or list, and returns the state for what follows it.
func (s *scanner) pop(comma state) state {
	if s.comma != comma {
		return broken
	}
	depth := len(s.outer) - 1
	if s.watched {
		s.leave(depth)
	}
	s.comma, s.watched = s.outer[depth], len(s.items) == depth
	s.outer = s.outer[:depth]
	return stateNext
}

// scanner.leave forgets the position within a container that ends, if a path can lead into it.
func (s *scanner) leave(depth int) {
	s.items = s.items[:depth]
	for i := range s.paths {
		s.paths[i].matched = min(s.paths[i].matched, depth)
	}
}

// enterItem counts an item of the innermost list, and finds the paths that lead to it.
func (s *scanner) enterItem() {
	item := &s.items[len(s.items)-1]
	*item++
	s.enter(func(p *part) bool { return p.index == *item })
}

// endName reads the last part of a member's name.
func (s *scanner) endName(rest []byte) state {
	if s.named = false; s.watched {
		s.note(rest)
		s.enterMember()
		s.text = s.text[:0]
	}
	return stateColon
}

// enterMember finds the paths that lead to the member whose name has been read.
func (s *scanner) enterMember() {
	name := s.text
	if len(name) > keyBytesMax {
		s.enter(func(*part) bool { return false })
		return
	}
	if strings.IndexByte(string(name), '\\') < 0 {
		s.enter(func(p *part) bool { return p.name == string(name) })
		return
	}
	unescaped := unescapeName(name)
	s.enter(func(p *part) bool { return p.name == unescaped })
}

// scanner.enter records which paths lead to the next value of the innermost container. It discards
// the numbers that were found earlier at or below that position.
func (s *scanner) enter(is func(p *part) bool) {
	depth := len(s.outer)
	for i := range s.paths {
		p := &s.paths[i]
		if p.matched < depth-1 {
			continue
		}
		p.matched = depth - 1
		if depth <= len(p.parts) && is(&p.parts[depth-1]) {
			p.matched, p.found = depth, false
		}
	}
}

// endNumber stores the number that ends with the piece in each path that leads to this number.
func (s *scanner) endNumber(piece []byte) {
	s.note(lastNumber(piece))
	depth := len(s.outer)
	for i := range s.paths {
		p := &s.paths[i]
		if p.matched == depth && len(p.parts) == depth && len(s.text) <= numberBytesMax {
			p.number, p.found = append(p.number[:0], s.text...), true
		}
	}
	s.text = s.text[:0]
}
