// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"

	"github.com/penstock/penstock/core"
)

// Compile makes the ruleset that decides. The error is [core.Problems]: what the words do not mean, and what the policy
// they make cannot do, each with the place of the words where it is known.
func (d *Document) Compile() (*core.Ruleset, error) {
	found := &report{}
	ruleset := d.compile(found)
	if err := found.err(); err != nil {
		return nil, err
	}
	return ruleset, nil
}

// addFollowing adds to the problems of a tree those of the words it holds, so that one look tells everything. It adds
// nothing to a document that decoded well: that is for Compile to say.
func (d *Document) addFollowing(found *report) {
	if len(found.problems) > 0 {
		d.compile(found)
	}
}

// compile adds the problems of words and of the policy to those found before. What has been found wrong is not reported
// again for what it leads to: a limit that cannot be read is not a limit that is missing.
func (d *Document) compile(found *report) *core.Ruleset {
	decoded := problemRoots(found.problems)
	p, err := d.Policy()
	var read core.Problems
	if errors.As(err, &read) {
		for _, problem := range read {
			if !found.touches(problem.Path) {
				found.add(problem)
			}
		}
	}
	if decoded["policy"] || decoded["yaml"] || decoded["toml"] || decoded["json"] {
		return nil // a part of the document could not be read: what is missing now may be written there
	}
	ruleset, err := core.Compile(p)
	var compiled core.Problems
	switch {
	case errors.As(err, &compiled):
		for _, problem := range compiled {
			if found.touches(problem.Path) || decoded[root(problem.Path)] && !standsAlone(problem) {
				continue
			}
			if problem.Place == "" {
				problem.Place = d.tree.place(problem.Path)
			}
			found.add(problem)
		}
	case err != nil:
		found.add(core.Problem{Path: "policy", Why: err.Error()})
	}
	return ruleset
}

// standsAlone reports whether a problem is with a value that is there, whatever else its rule says. Others, such as a
// priority without a group, may only follow from a word that was misspelled.
func standsAlone(p core.Problem) bool {
	_, inRule, _ := strings.Cut(p.Path, ".")
	_, match, inMatch := strings.Cut("."+inRule, ".match.")
	switch {
	case p.Value == "":
		return false
	case inMatch:
		return strings.HasPrefix(match, "header.") || strings.HasSuffix(match, "]")
	case strings.HasPrefix(inRule, "cost["):
		return strings.HasSuffix(inRule, ".n")
	default:
		return inRule == "name" || strings.HasPrefix(inRule, "limit[")
	}
}

// problemRoots returns the parts of the document, such as rules[2], in which there are problems.
func problemRoots(problems core.Problems) map[string]bool {
	roots := make(map[string]bool, len(problems))
	for _, problem := range problems {
		roots[root(problem.Path)] = true
	}
	return roots
}

// root is the first word of a path, with its index.
func root(path string) string {
	first, _, _ := strings.Cut(path, ".")
	return first
}

// place returns where a path of the document was written: the place of the deepest node on the way that is there.
func (n *Node) place(path string) string {
	if n == nil {
		return ""
	}
	place := n.Place
	for n != nil && path != "" {
		n, path = n.step(path)
		if n != nil && n.Place != "" {
			place = n.Place
		}
	}
	return place
}

// step follows the first word or index of a path. A word may hold a dot, as header names may, so the longest key wins; and
// headers may be written in another case. A single value stands for a list of one.
func (n *Node) step(path string) (next *Node, rest string) {
	path = strings.TrimPrefix(path, ".")
	if inner, ok := strings.CutPrefix(path, "["); ok {
		digits, rest, _ := strings.Cut(inner, "]")
		if n.Kind != KindList {
			return n, rest
		}
		at := 0
		for _, digit := range []byte(digits) {
			at = min(at*10+int(digit-'0'), len(n.Items))
		}
		if at < 0 || at >= len(n.Items) {
			return nil, ""
		}
		return n.Items[at], rest
	}
	best := -1
	for i := range n.Entries {
		key := n.Entries[i].Key
		if within(path, key) && (best < 0 || len(key) > len(n.Entries[best].Key)) {
			best = i
		}
	}
	if best < 0 {
		return nil, ""
	}
	return n.Entries[best].Value, path[len(n.Entries[best].Key):]
}
