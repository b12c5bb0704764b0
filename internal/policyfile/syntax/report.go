// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

const (
	// ProblemsMax is the greatest number of problems that one error lists. Further ones are only
	// counted, so that a hostile document cannot fill the log.
	ProblemsMax = 100
	// valueMax is the greatest number of bytes of a value, a key or a path in a problem.
	valueMax = 120
)

// Report collects the problems of one document.
type Report struct {
	Problems policy.Problems
	More     int // problems beyond ProblemsMax
	// Finish adds what the problems lack, such as the names of rules, before they are sorted.
	// Finish may be nil.
	Finish func(policy.Problems)
}

// Add adds a problem, shortened. Problems beyond ProblemsMax are only counted.
func (r *Report) Add(p policy.Problem) {
	if r.Full() {
		r.More++
		return
	}
	p.Value, p.Path = Cut(p.Value), Cut(p.Path)
	r.Problems = append(r.Problems, p)
}

// Full reports whether further problems are only counted. The remedies of these problems are then
// not needed.
func (r *Report) Full() bool { return len(r.Problems) == ProblemsMax }

// At reports a problem with a node.
func (r *Report) At(n *Node, path, why, remedy string) {
	if path == "" {
		path = "policy"
	}
	value := n.Shown()
	if LastWord(path) == "secret" && value != "" { // problems are logged
		value, remedy = "", "write it in quotes"
	}
	r.Add(policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: n.Place})
}

// Err returns the problems in the order of the document, or nil.
func (r *Report) Err() error {
	if len(r.Problems) == 0 {
		return nil
	}
	if r.Finish != nil {
		r.Finish(r.Problems)
	}
	r.Sort()
	problems := r.Problems
	if r.More > 0 {
		problems = append(slices.Clip(problems), policy.Problem{
			Path: fmt.Sprintf("and %d more problems", r.More), Why: "mend those above first",
		})
	}
	return problems
}

// Sort orders the problems by line if all lines are known and in one file.
func (r *Report) Sort() {
	lines := make(map[policy.Problem]int, len(r.Problems))
	file := ""
	for i, p := range r.Problems {
		name, line, ok := splitPlace(p.Place)
		if !ok || i > 0 && name != file {
			return
		}
		file, lines[p] = name, line
	}
	slices.SortStableFunc(r.Problems, func(a, b policy.Problem) int { return lines[a] - lines[b] })
}

func splitPlace(place string) (file string, line int, ok bool) {
	colon := strings.LastIndexByte(place, ':')
	if colon < 0 {
		return "", 0, false
	}
	line, err := strconv.Atoi(place[colon+1:])
	return place[:colon], line, err == nil
}

// Touches reports whether there is a problem at the path, above it or below it.
func (r *Report) Touches(path string) bool {
	return slices.ContainsFunc(r.Problems, func(p policy.Problem) bool {
		return Within(p.Path, path) || Within(path, p.Path)
	})
}

// Within reports whether the path equals the argument outer or is inside it. Within ignores case,
// because problems can spell header names differently than the document.
func Within(path, outer string) bool {
	if len(path) < len(outer) || !strings.EqualFold(path[:len(outer)], outer) {
		return false
	}
	rest := path[len(outer):]
	return rest == "" || rest[0] == '.' || rest[0] == '['
}

// Cut shortens a text of the document.
func Cut(text string) string {
	if len(text) <= valueMax {
		return text
	}
	end := valueMax
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// Shown returns the node's value for a problem: the text of a scalar, "" otherwise.
func (n *Node) Shown() string {
	switch n.Kind {
	case KindList, KindMap, KindNull:
		return ""
	default:
		return n.Text
	}
}

// LastWord returns the last key of a path: limit for rules[2].limit[0].
func LastWord(path string) string {
	path = path[strings.LastIndexByte(path, '.')+1:]
	if bracket := strings.IndexByte(path, '['); bracket >= 0 {
		path = path[:bracket]
	}
	return path
}
