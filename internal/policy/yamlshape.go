// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"fmt"
)

// openMax is how many brackets or list dashes may stand open in YAML text before it is parsed: the parser calls itself
// for each of them, and a stack that overflows cannot be caught. Brackets in words and comments are counted too, which is
// why it is more than depthMax.
const openMax = 500

// flowItemsMax is how many items a list in brackets may have: 10,000 rules in brackets take the parser 0.2 s, and the
// time grows with the square. Lists written with dashes have no such bound.
const flowItemsMax = 10_000

// refuseShape refuses, before they are parsed, YAML documents that would cost the parser more than reading them: those
// nested too deeply, and those with too many keys in one block. It looks at lines and brackets only.
func refuseShape(name string, data []byte, found *report) bool {
	shape := yamlShape{keys: map[int]int{}}
	for number := 1; len(data) > 0; number++ {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		shape.block(line)
		shape.flow(line)
		switch {
		case shape.deep:
			found.add(deepProblem("yaml", placeAt(name, number)))
			return true
		case shape.wide:
			problem := wideProblem("yaml", placeAt(name, number))
			problem.Why += fmt.Sprintf(", or more than %d items in one pair of brackets", flowItemsMax)
			found.add(problem)
			return true
		}
	}
	return false
}

// bracket is a bracket or brace that is open: the items in it so far, and how many there may be.
type bracket struct{ items, most int }

type yamlShape struct {
	keys       map[int]int // lines with a key by their indentation, since a line further out
	brackets   []bracket   // those that are open
	deep, wide bool
}

// block counts the keys of blocks, which are lines with the same indentation, and the dashes of one line. It does so in
// brackets as well: whether one is open cannot be told here, for it may stand in a word or a comment.
func (s *yamlShape) block(line []byte) {
	indent, dashes := 0, 0
	for ; indent < len(line); indent++ {
		c := line[indent]
		isMark := (c == '-' || c == '?') && (indent+1 == len(line) || line[indent+1] == ' ' || line[indent+1] == '\t')
		if !isMark && c != ' ' && c != '\t' {
			break
		}
		if isMark { // a new item: what stands further in has ended
			dashes++
			s.forget(indent)
		}
	}
	s.deep = s.deep || dashes > openMax
	if indent == len(line) || line[indent] == '#' || !bytes.ContainsRune(line, ':') && !isBracket(line[indent]) {
		return
	}
	s.forget(indent)
	if isBracket(line[indent]) { // an item in brackets, or its end: no key of a block
		return
	}
	s.keys[indent]++
	s.wide = s.wide || s.keys[indent] > keysMax
}

func isBracket(c byte) bool { return c == '[' || c == ']' || c == '{' || c == '}' }

func (s *yamlShape) forget(indent int) {
	for further := range s.keys {
		if further > indent {
			delete(s.keys, further)
		}
	}
}

// flow counts the brackets that are open, and the items in each.
func (s *yamlShape) flow(line []byte) {
	for _, c := range line {
		last := len(s.brackets) - 1
		switch {
		case c == '[':
			s.brackets = append(s.brackets, bracket{1, flowItemsMax})
		case c == '{':
			s.brackets = append(s.brackets, bracket{1, keysMax})
		case (c == ']' || c == '}') && last >= 0:
			s.brackets = s.brackets[:last]
		case c == ',' && last >= 0:
			s.brackets[last].items++
			s.wide = s.wide || s.brackets[last].items > s.brackets[last].most
		}
		if len(s.brackets) > openMax {
			s.deep = true
			return
		}
	}
}
