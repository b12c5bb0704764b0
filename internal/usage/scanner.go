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
	paths  []path
	state  state
	rest   string      // the expected rest of a literal such as true
	hex    int         // digits of an escape that are still to come
	inKey  bool        // the string is a member's name
	key    []byte      // the name, as written, of a member that might be on a path
	stack  []container // the open containers
	number []byte      // the number being read
}

// container is an object or a list that is open.
type container struct {
	list bool
	next int // in a list, the index of the next item
}

// path is a path and the number found at it.
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

// state is the kind of byte that can come next.
type state uint8

const (
	stateValue     state = iota // a value
	stateFirstItem              // a value, or the end of an empty list
	stateFirstKey               // a name, or the end of an empty object
	stateKey                    // a name
	stateColon                  // the colon between name and value
	stateNext                   // a comma, or the container's end
	stateEnd                    // nothing more
	stateString                 // in a string
	stateEscape                 // after a backslash
	stateHex                    // a digit of an escape
	stateLiteral                // in true, false or null
	stateMinus                  // after a minus: a digit
	stateZero                   // after a leading zero: no digit
	stateWhole                  // in the digits before a point
	statePoint                  // after the point: a digit
	stateFraction               // in the digits after the point
	stateExponent               // after an e: a sign or a digit
	stateSign                   // after its sign: a digit
	stateExponents              // in the digits of an exponent
	stateBroken                 // the document is not JSON
	stateTooDeep                // it has more than depthMax levels
)

func newScanner(paths []string) scanner {
	s := scanner{paths: make([]path, len(paths))}
	for i, text := range paths {
		for _, name := range slim.Split(text, ".") {
			s.paths[i].parts = append(s.paths[i].parts, part{name, indexOf(name)})
		}
	}
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
	s.state, s.stack = stateValue, s.stack[:0]
	for i := range s.paths {
		p := &s.paths[i]
		p.matched, p.found = 0, false
	}
}

// isComplete reports whether a complete document was written.
func (s *scanner) isComplete() bool {
	if len(s.stack) == 0 && s.numberMayEnd() {
		s.endNumber()
	}
	return s.state == stateEnd
}

// scanner.write parses the next piece of the document.
func (s *scanner) write(piece []byte) {
	for i := 0; i < len(piece) && s.state < stateBroken; i++ {
		if s.state == stateString {
			n := plainBytes(piece[i:])
			s.noteKey(piece[i : i+n]...)
			if i += n; i == len(piece) {
				return
			}
		}
		s.step(piece[i])
	}
}

// plainBytes returns how many bytes of a string precede the next quote, backslash or control
// character.
func plainBytes(piece []byte) int {
	for i, c := range piece {
		if c == '"' || c == '\\' || c < ' ' {
			return i
		}
	}
	return len(piece)
}

// scanner.step reads a byte.
func (s *scanner) step(c byte) {
	switch {
	case s.state == stateString || s.state == stateEscape || s.state == stateHex:
		s.inString(c)
		return
	case s.state == stateLiteral:
		s.inLiteral(c)
		return
	case s.state >= stateMinus:
		if s.inNumber(c) {
			return
		}
		if s.state == stateBroken {
			return
		}
	}
	if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
		s.structure(c)
	}
}

// scanner.structure parses a byte between values, or the first byte of a value.
func (s *scanner) structure(c byte) {
	switch s.state {
	case stateFirstItem:
		if c == ']' {
			s.pop(true)
			return
		}
		s.begin(c)
	case stateValue:
		s.begin(c)
	case stateFirstKey, stateKey:
		switch {
		case c == '"':
			s.state, s.inKey, s.key = stateString, true, s.key[:0]
		case c == '}' && s.state == stateFirstKey:
			s.pop(false)
		default:
			s.state = stateBroken
		}
	case stateColon:
		s.state = stateValue
		if c != ':' {
			s.state = stateBroken
		}
	case stateNext:
		s.next(c)
	default: // stateEnd
		s.state = stateBroken
	}
}

// scanner.next reads a byte that follows a value in a container.
func (s *scanner) next(c byte) {
	top := &s.stack[len(s.stack)-1]
	switch {
	case c == ',' && top.list:
		s.state = stateValue
	case c == ',':
		s.state = stateKey
	case c == ']' || c == '}':
		s.pop(c == ']')
	default:
		s.state = stateBroken
	}
}

// scanner.begin reads the first byte of a value.
func (s *scanner) begin(c byte) {
	if depth := len(s.stack); depth > 0 && s.stack[depth-1].list {
		s.enterItem()
	}
	switch {
	case c == '{' || c == '[':
		s.push(c == '[')
	case c == '"':
		s.state, s.inKey = stateString, false
	case c == '-' || c >= '0' && c <= '9':
		s.number = append(s.number[:0], c)
		s.state = stateWhole
		if c == '-' {
			s.state = stateMinus
		} else if c == '0' {
			s.state = stateZero
		}
	default:
		s.state = stateLiteral
		switch c {
		case 't':
			s.rest = "rue"
		case 'f':
			s.rest = "alse"
		case 'n':
			s.rest = "ull"
		default:
			s.state = stateBroken
		}
	}
}

func (s *scanner) push(list bool) {
	if len(s.stack) == depthMax {
		s.state = stateTooDeep
		return
	}
	s.stack = append(s.stack, container{list: list})
	s.state = stateFirstKey
	if list {
		s.state = stateFirstItem
	}
}

func (s *scanner) pop(list bool) {
	depth := len(s.stack)
	if s.stack[depth-1].list != list {
		s.state = stateBroken
		return
	}
	for i := range s.paths {
		s.paths[i].matched = min(s.paths[i].matched, depth-1)
	}
	s.stack = s.stack[:depth-1]
	s.endValue()
}

// endValue is called after every value.
func (s *scanner) endValue() {
	s.state = stateNext
	if len(s.stack) == 0 {
		s.state = stateEnd
	}
}

// enterItem is called before every item of a list.
func (s *scanner) enterItem() {
	top := &s.stack[len(s.stack)-1]
	s.enter(func(p *part) bool { return p.index == top.next })
	top.next++
}

// enterMember is called after the name of every member.
func (s *scanner) enterMember() {
	if len(s.key) > keyBytesMax {
		s.enter(func(*part) bool { return false })
		return
	}
	if strings.IndexByte(string(s.key), '\\') < 0 {
		s.enter(func(p *part) bool { return p.name == string(s.key) })
		return
	}
	name := unescapeName(s.key)
	s.enter(func(p *part) bool { return p.name == name })
}

// scanner.enter records which paths lead to the next value of the innermost container. Numbers
// found earlier at or below that position no longer count.
func (s *scanner) enter(is func(p *part) bool) {
	depth := len(s.stack)
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

// noteKey keeps bytes of a member's name, at most one more than a name can have.
func (s *scanner) noteKey(piece ...byte) {
	if s.inKey {
		s.key = append(s.key, piece[:min(len(piece), keyBytesMax+1-len(s.key))]...)
	}
}

// inString reads a quote, a backslash or a control character of a string, or a byte of an escape.
func (s *scanner) inString(c byte) {
	switch {
	case s.state == stateHex:
		s.noteKey(c)
		if !isHex(c) {
			s.state = stateBroken
		} else if s.hex--; s.hex == 0 {
			s.state = stateString
		}
	case s.state == stateEscape:
		s.noteKey(c)
		s.state = stateString
		if c == 'u' {
			s.state, s.hex = stateHex, 4
		} else if strings.IndexByte(`"\/bfnrt`, c) < 0 {
			s.state = stateBroken
		}
	case c == '\\':
		s.noteKey(c)
		s.state = stateEscape
	case c != '"': // a control character
		s.state = stateBroken
	case s.inKey:
		s.inKey, s.state = false, stateColon
		s.enterMember()
	default:
		s.endValue()
	}
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func (s *scanner) inLiteral(c byte) {
	if c != s.rest[0] {
		s.state = stateBroken
		return
	}
	if s.rest = s.rest[1:]; s.rest == "" {
		s.endValue()
	}
}
