// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/rls"
)

// rule is a rule of the policy to be: the entries on the way to it, and what stands at its end.
type rule struct {
	name  string
	place string
	group string
	keys  []string // of the descriptors it is for
	steps []*entry // fewer than keys where nothing follows that the configuration knows
	limit *limit   // nil: nothing is limited
	last  *entry   // whose the limit is
}

// generator makes rules of one domain.
type generator struct {
	rules  []*rule
	names  map[string]bool // of all domains
	groups int
}

// generate makes the rules of a domain's descriptors: for one list of keys after the other.
func (g *generator) generate(entries []*entry) {
	for _, keys := range limitedKeys(entries, nil, nil) {
		g.walk(keys, entries)
	}
}

// limitedKeys appends the lists of keys at whose end there is a limit, each once, in the order of the configuration.
func limitedKeys(entries []*entry, before []string, lists [][]string) [][]string {
	for _, e := range entries {
		keys := append(slices.Clip(before), e.key)
		if e.limit != nil && !slices.ContainsFunc(lists, func(l []string) bool { return slices.Equal(l, keys) }) {
			lists = append(lists, keys)
		}
		lists = limitedKeys(e.children, keys, lists)
	}
	return lists
}

// walk makes the rules for descriptors of these keys.
func (g *generator) walk(keys []string, entries []*entry) {
	rules := lookUp(keys, entries, nil, nil)
	rules = slices.DeleteFunc(rules, func(r *rule) bool { return r.limit == nil && !needed(r, rules) })
	group := ""
	for i, r := range rules {
		for _, other := range rules[:i] {
			if overlap(r, other) && group == "" {
				g.groups++
				group = "g" + strconv.Itoa(g.groups)
			}
		}
	}
	for _, r := range rules {
		r.group, r.name = group, g.nameOf(r)
		if r.group == "" && r.limit.unlimited {
			g.groups++
			r.group = "g" + strconv.Itoa(g.groups) // what allows needs one
		}
	}
	g.rules = append(g.rules, rules...)
}

// lookUp appends the rules for descriptors of these keys in the order in which they are looked up.
func lookUp(keys []string, entries []*entry, steps []*entry, rules []*rule) []*rule {
	depth := len(steps)
	for _, e := range inOrder(keys[depth], entries) {
		way := append(slices.Clip(steps), e)
		if depth == len(keys)-1 {
			rules = append(rules, &rule{place: e.place, keys: keys, steps: way, limit: e.limit, last: e})
			continue
		}
		rules = lookUp(keys, e.children, way, rules)
		rules = append(rules, &rule{place: e.place, keys: keys, steps: way})
	}
	return rules
}

// inOrder returns the entries of a key in the order in which they are tried: values, then patterns, then any.
func inOrder(key string, entries []*entry) []*entry {
	var list []*entry
	for _, tried := range []func(*entry) bool{
		func(e *entry) bool { return e.value != "" && !e.wild() },
		(*entry).wild,
		func(e *entry) bool { return e.value == "" },
	} {
		for _, e := range entries {
			if e.key == key && tried(e) {
				list = append(list, e)
			}
		}
	}
	return list
}

// needed reports whether a rule without a limit keeps a descriptor from one that follows.
func needed(r *rule, rules []*rule) bool {
	at := slices.Index(rules, r)
	return slices.ContainsFunc(rules[at+1:], func(later *rule) bool { return later.limit != nil && overlap(r, later) })
}

// overlap reports whether a descriptor can be one for both rules.
func overlap(a, b *rule) bool {
	for i := range min(len(a.steps), len(b.steps)) {
		if one, two := a.steps[i].value, b.steps[i].value; one != "" && two != "" && !meet(one, two) {
			return false
		}
	}
	return true
}

// meet reports whether there is a value for both texts, each of which may be a pattern.
func meet(a, b string) bool {
	wildA, wildB := strings.Contains(a, "*"), strings.Contains(b, "*")
	switch {
	case !wildA && !wildB:
		return a == b
	case !wildB:
		return fits(a, b)
	case !wildA:
		return fits(b, a)
	}
	// The longer beginning, all that stands between stars, and the longer end are a value for both.
	beginA, beginB := a[:strings.Index(a, "*")], b[:strings.Index(b, "*")]
	endA, endB := a[strings.LastIndex(a, "*")+1:], b[strings.LastIndex(b, "*")+1:]
	return (strings.HasPrefix(beginA, beginB) || strings.HasPrefix(beginB, beginA)) &&
		(strings.HasSuffix(endA, endB) || strings.HasSuffix(endB, endA))
}

// fits reports whether the pattern, which has a star, is for the value.
func fits(pattern, value string) bool {
	pieces := strings.Split(pattern, "*")
	last := len(pieces) - 1
	rest, ok := strings.CutPrefix(value, pieces[0])
	if !ok {
		return false
	}
	for _, piece := range pieces[1:last] {
		if _, rest, ok = strings.Cut(rest, piece); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, pieces[last])
}

// nameOf returns a name for the rule that no other has: its keys and values, as far as names can hold them.
func (g *generator) nameOf(r *rule) string {
	var b strings.Builder
	for i, step := range r.steps {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(step.key)
		if step.value != "" {
			b.WriteString("_" + step.value)
		}
	}
	if r.limit == nil {
		b.WriteString(".none")
	}
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c) {
			return c
		}
		return '-'
	}, b.String())
	const room = len("-99999")
	base := name[:min(len(name), core.NameBytesMax-room)]
	name = base
	for n := 2; g.names[name]; n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	g.names[name] = true
	return name
}

// attrs returns what the rule matches and counts by: the values it names, and the attributes that may be any.
func (r *rule) attrs() (match map[string]string, per []string) {
	match = map[string]string{}
	seen := map[string]int{}
	for _, step := range r.steps {
		seen[step.key]++
		name := rls.Nth(step.key, seen[step.key])
		if step.value != "" {
			match[name] = step.value
		}
		if step.value == "" || step.wild() && !step.share {
			per = append(per, name)
		}
	}
	return match, per
}
