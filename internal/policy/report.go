// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core"
)

const (
	// problemsMax is how many problems one error names. More are counted: nobody reads on, and a hostile document must
	// not fill the log.
	problemsMax = 100
	// valueMax is how many bytes of a value, a key or a path a problem repeats.
	valueMax = 120
)

// report collects the problems of one document.
type report struct {
	problems core.Problems
	more     int // problems beyond problemsMax
}

func (r *report) add(p core.Problem) {
	if r.full() {
		r.more++
		return
	}
	p.Value, p.Path = cut(p.Value), cut(p.Path)
	r.problems = append(r.problems, p)
}

// full reports whether further problems are only counted: then their remedies need not be found.
func (r *report) full() bool { return len(r.problems) == problemsMax }

// at reports a problem with a node.
func (r *report) at(n *Node, path, why, remedy string) {
	if path == "" {
		path = "policy"
	}
	value := n.shown()
	if lastWord(path) == "secret" && value != "" { // problems end in logs
		value, remedy = "", "write it in quotes"
	}
	r.add(core.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: n.Place})
}

// err returns the problems in the order of the document, or nil.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	r.sort()
	problems := r.problems
	if r.more > 0 {
		problems = append(slices.Clip(problems), core.Problem{
			Path: fmt.Sprintf("and %d more problems", r.more), Why: "mend those above first",
		})
	}
	return problems
}

// sort puts the problems into the order of their lines, if all are known and in one file; otherwise the order stays.
func (r *report) sort() {
	lines := make(map[core.Problem]int, len(r.problems))
	file := ""
	for i, p := range r.problems {
		name, line, ok := splitPlace(p.Place)
		if !ok || i > 0 && name != file {
			return
		}
		file, lines[p] = name, line
	}
	slices.SortStableFunc(r.problems, func(a, b core.Problem) int { return lines[a] - lines[b] })
}

func splitPlace(place string) (file string, line int, ok bool) {
	colon := strings.LastIndexByte(place, ':')
	if colon < 0 {
		return "", 0, false
	}
	line, err := strconv.Atoi(place[colon+1:])
	return place[:colon], line, err == nil
}

// touches reports whether a problem is at the path, above it or below it.
func (r *report) touches(path string) bool {
	return slices.ContainsFunc(r.problems, func(p core.Problem) bool {
		return within(p.Path, path) || within(path, p.Path)
	})
}

// within reports whether the path is the outer one or leads into it. Headers may be written in another case than they
// are reported in.
func within(path, outer string) bool {
	if len(path) < len(outer) || !strings.EqualFold(path[:len(outer)], outer) {
		return false
	}
	rest := path[len(outer):]
	return rest == "" || rest[0] == '.' || rest[0] == '['
}

// cut shortens a text that came from the document.
func cut(text string) string {
	if len(text) <= valueMax {
		return text
	}
	end := valueMax
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// shown is the node's value as a problem repeats it: the text of a scalar, "" otherwise.
func (n *Node) shown() string {
	switch n.Kind {
	case KindList, KindMap, KindNull:
		return ""
	default:
		return n.Text
	}
}
