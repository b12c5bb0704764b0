// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/rls"
)

// rule is a rule to generate: the entries on the path to a limit, and the last entry.
type rule struct {
	name     string
	place    string
	group    string
	keys     []string // keys of the descriptors to which it applies
	steps    []*entry // fewer than keys if the configuration has no entry for the remaining keys
	limit    *limit   // nil means that nothing is limited
	last     *entry   // the entry that has the limit
	priority int      // the position among the rules for the same keys
	behind   bool     // an earlier rule applies to some of this rule's descriptors
}

// generator makes rules of one domain.
type generator struct {
	rules   []*rule
	names   map[string]bool // of all domains
	groups  int
	sources Sources // nil for the rate limit protocol
}

// generator.generate generates the rules of a domain, one list of descriptor keys at a time.
func (g *generator) generate(entries []*entry) {
	for _, keys := range limitedKeys(entries, nil, nil) {
		g.walk(keys, entries)
	}
}

// limitedKeys appends the lists of keys that lead to a limit, each once, in the order of the
// configuration.
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

// generator.walk generates the rules for descriptors with these keys.
func (g *generator) walk(keys []string, entries []*entry) {
	rules := lookUp(keys, entries, nil, nil)
	rules = slices.DeleteFunc(rules, func(r *rule) bool { return r.limit == nil && !g.needed(r, rules) })
	group := ""
	for i, r := range rules {
		for _, other := range rules[:i] {
			if !g.overlaps(r, other) {
				continue
			}
			r.behind = true
			if group == "" {
				g.groups++
				group = "g" + strconv.Itoa(g.groups)
			}
		}
	}
	for i, r := range rules {
		r.group, r.name, r.priority = group, g.nameOf(r), i
		if r.group == "" && r.limit.unlimited {
			g.groups++
			r.group = "g" + strconv.Itoa(g.groups) // an allow rule needs a group
		}
	}
	g.rules = append(g.rules, rules...)
}

// lookUp appends the rules for descriptors with these keys, in the order in which the service looks
// them up.
func lookUp(keys []string, entries []*entry, steps []*entry, rules []*rule) []*rule {
	depth := len(steps)
	for _, e := range sortEntries(keys[depth], entries) {
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

// sortEntries returns the entries of a key in the order in which the service tries them: exact
// values, then patterns, then any value.
func sortEntries(key string, entries []*entry) []*entry {
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

// generator.needed reports whether the rule r, which has no limit, is needed. That is so if a later
// rule has a limit, and would apply to some descriptors of r if r were left out.
func (g *generator) needed(r *rule, rules []*rule) bool {
	at := slices.Index(rules, r)
	return slices.ContainsFunc(rules[at+1:], func(later *rule) bool { return later.limit != nil && g.overlaps(r, later) })
}

// generator.overlaps reports whether some descriptor matches both rules.
func (g *generator) overlaps(a, b *rule) bool {
	for i := range min(len(a.steps), len(b.steps)) {
		if one, two := a.steps[i].value, b.steps[i].value; one != "" && two != "" && !g.sources.meet(a.steps[i].key, one, two) {
			return false
		}
	}
	return true
}

// meet reports whether some value matches both texts, each of which may be a pattern.
func meet(a, b string) bool {
	wildA, wildB := strings.Contains(a, "*"), strings.Contains(b, "*")
	switch {
	case !wildA && !wildB:
		return a == b
	case !wildB:
		return matchesStar(a, b)
	case !wildA:
		return matchesStar(b, a)
	}
	// The longer prefix, all text between stars, and the longer suffix together form a value that
	// matches both.
	beginA, beginB := a[:strings.Index(a, "*")], b[:strings.Index(b, "*")]
	endA, endB := a[strings.LastIndex(a, "*")+1:], b[strings.LastIndex(b, "*")+1:]
	return (strings.HasPrefix(beginA, beginB) || strings.HasPrefix(beginB, beginA)) &&
		(strings.HasSuffix(endA, endB) || strings.HasSuffix(endB, endA))
}

// matchesStar reports whether the value matches the pattern, which has a star.
func matchesStar(pattern, value string) bool {
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

// nameOf returns a unique name for the rule, made of those characters of its keys and values that
// names may contain.
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
	base := name[:min(len(name), policy.NameBytesMax-room)]
	name = base
	for n := 2; g.names[name]; n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	g.names[name] = true
	return name
}

// rule.attrs returns the attributes that the rule matches by value. The result named per names the
// attributes that may have any value.
func (r *rule) attrs() (match map[string]string, per []string) {
	match = map[string]string{}
	seen := map[string]int{}
	for _, step := range r.steps {
		seen[step.key]++
		name := rls.Nth(step.key, seen[step.key])
		if step.value != "" {
			match[name] = step.value
		}
		if step.hasCounters() {
			per = append(per, "attr:"+name)
		}
	}
	return match, per
}
