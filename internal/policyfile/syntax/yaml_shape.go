// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"bytes"
	"fmt"
)

// openMax is the greatest number of brackets or list dashes that can be open at once in YAML text.
// openMax is checked before the text is parsed. The parser recurses for each of them, and a stack
// overflow cannot be caught. Brackets in strings and comments are counted too, so openMax is higher
// than depthMax.
const openMax = 500

// flowItemsMax is the greatest number of items of a list in brackets. The parser takes 0.2 s for
// 10,000 rules in brackets, and the time grows with the square. Lists written with dashes have no
// such bound.
const flowItemsMax = 10_000

// rejectShape rejects, before they are parsed, YAML documents that would be expensive to parse:
// those nested too deeply, and those with too many keys in one block. rejectShape inspects only
// lines and brackets.
func rejectShape(name string, data []byte, found *Report) bool {
	shape := yamlShape{keys: map[int]int{}}
	for number := 1; len(data) > 0; number++ {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		shape.block(line)
		shape.flow(line)
		switch {
		case shape.deep:
			found.Add(deepProblem("yaml", placeAt(name, number)))
			return true
		case shape.wide:
			problem := wideProblem("yaml", placeAt(name, number))
			problem.Why += fmt.Sprintf(", or more than %d items in one pair of brackets", flowItemsMax)
			found.Add(problem)
			return true
		}
	}
	return false
}

// bracket is an open bracket or brace, with its number of items so far and its maximum.
type bracket struct{ items, most int }

type yamlShape struct {
	// the number of lines with a key by indentation, since the last line with less indentation
	keys       map[int]int
	brackets   []bracket // the open brackets
	deep, wide bool
}

// yamlShape.block counts the keys of blocks and the dashes of one line. A block is a series of
// lines with the same indentation. yamlShape.block counts inside brackets too, because it cannot
// tell whether a bracket is part of a word or a comment.
func (s *yamlShape) block(line []byte) {
	indent, dashes := 0, 0
	for ; indent < len(line); indent++ {
		c := line[indent]
		isMark := (c == '-' || c == '?') && (indent+1 == len(line) || line[indent+1] == ' ' || line[indent+1] == '\t')
		if !isMark && c != ' ' && c != '\t' {
			break
		}
		if isMark { // a new item ends the blocks inside the previous item
			dashes++
			s.forget(indent)
		}
	}
	s.deep = s.deep || dashes > openMax
	if indent == len(line) || line[indent] == '#' || !bytes.ContainsRune(line, ':') && !isBracket(line[indent]) {
		return
	}
	s.forget(indent)
	if isBracket(line[indent]) { // an item or the end of brackets, not a key of a block
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

// yamlShape.flow counts the open brackets and the items in each.
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
