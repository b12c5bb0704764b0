// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
)

// Changes is what became of a policy, for the log. The zero Changes says that nothing changed.
type Changes struct {
	Words   []string // of the policy itself that say something else: "identify", "headers"; and "order of rules"
	Added   []string // the names of rules that are new
	Removed []string // the names of rules that are gone
	Changed []string // rules that say something else, and by which words: "api (limit, cost)"
	Anew    []string // counters that start anew, and why: "api 100/1h: its window or algorithm is new"
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return len(c.Words)+len(c.Added)+len(c.Removed)+len(c.Changed)+len(c.Anew) == 0
}

// String tells the changes in one line.
func (c *Changes) String() string {
	if c.Empty() {
		return "nothing changed"
	}
	var parts []string
	for _, part := range []struct {
		what string
		list []string
	}{
		{"changed", c.Words}, {"rules added", c.Added}, {"rules removed", c.Removed}, {"rules changed", c.Changed},
		{"counters that start anew", c.Anew},
	} {
		if len(part.list) > 0 {
			parts = append(parts, part.what+": "+strings.Join(part.list, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// Diff says how two documents differ. Both have been compiled or checked: what a word means nothing for is left out. It
// looks at what is written, so a word that is now written out and means its default is a change as well.
func Diff(before, after *Document) (c Changes) {
	c.Words = slices.DeleteFunc(differing(*before, *after), func(word string) bool { return word == "rules" })
	was, is := rulesByName(before), rulesByName(after)
	for i := range after.Rules {
		rule := &after.Rules[i]
		old, known := was[rule.Name]
		if !known {
			c.Added = append(c.Added, rule.Name)
			continue
		}
		if words := differing(*old, *rule); len(words) > 0 {
			c.Changed = append(c.Changed, rule.Name+" ("+strings.Join(words, ", ")+")")
		}
	}
	for i := range before.Rules {
		if _, kept := is[before.Rules[i].Name]; !kept {
			c.Removed = append(c.Removed, before.Rules[i].Name)
		}
	}
	if !slices.Equal(staying(before, is), staying(after, was)) {
		c.Words = append(c.Words, "order of rules")
	}
	c.Anew = anew(before, after, was, is)
	return c
}

// staying returns the names of the document's rules that are in others as well, in its order.
func staying(d *Document, others map[string]*Rule) (names []string) {
	for i := range d.Rules {
		if name := d.Rules[i].Name; others[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

func rulesByName(d *Document) map[string]*Rule {
	rules := make(map[string]*Rule, len(d.Rules))
	for i := range d.Rules {
		rules[d.Rules[i].Name] = &d.Rules[i]
	}
	return rules
}

// differing returns the words by which two values of one of the document's types differ, in their order.
func differing[T any](a, b T) (changed []string) {
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	fields := fieldsOf(v.Type())
	for _, word := range wordsOf(v.Type()) {
		i := fields[word]
		if !reflect.DeepEqual(v.Field(i).Interface(), w.Field(i).Interface()) {
			changed = append(changed, word)
		}
	}
	return changed
}

// anew says which counters start anew: those of rules that stay, with a key that no counter of theirs had.
func anew(before, after *Document, was, is map[string]*Rule) (list []string) {
	if before.Name != after.Name {
		return []string{fmt.Sprintf("all: the policy is called %q instead of %q", after.Name, before.Name)}
	}
	list = append(list, anewForWhom(before, after)...)
	zoneMoved := cmp.Or(before.Timezone, "UTC") != cmp.Or(after.Timezone, "UTC")
	gone := goneByText(before, is)
	for i := range after.Rules {
		rule := &after.Rules[i]
		if old, known := was[rule.Name]; known {
			list = append(list, anewInRule(old, rule, zoneMoved)...)
		} else if name := gone[namelessText(*rule)]; name != "" {
			list = append(list, fmt.Sprintf("%s: it was called %s", rule.Name, name))
		}
	}
	return list
}

// anewForWhom says whose counters start anew because they are now taken for somebody else.
func anewForWhom(before, after *Document) (list []string) {
	if !reflect.DeepEqual(finding(before), finding(after)) {
		list = append(list, "those of clients that are now identified otherwise")
	}
	if !reflect.DeepEqual(before.TrustedProxies, after.TrustedProxies) || !reflect.DeepEqual(before.TrustedHops, after.TrustedHops) {
		list = append(list, "those of clients whose address is now taken from elsewhere")
	}
	for _, source := range []struct {
		word          string
		before, after Sources
	}{{"user", before.User, after.User}, {"tenant", before.Tenant, after.Tenant}, {"tier", before.Tier, after.Tier}} {
		counted := slices.ContainsFunc(after.Rules, func(r Rule) bool { return slices.Contains(dimensionsOf(&r), source.word) })
		if counted && !reflect.DeepEqual(source.before, source.after) {
			list = append(list, "those per "+source.word+" of clients whose "+source.word+" is now taken from elsewhere")
		}
	}
	return list
}

// finding returns how clients are identified, without what only says when tokens and keys are looked at.
func finding(d *Document) []Identify {
	ways := slices.Clone(d.Identify)
	for i := range ways {
		if ways[i].JWT != nil {
			jwt := *ways[i].JWT
			jwt.Refresh, jwt.Leeway = "", ""
			ways[i].JWT = &jwt
		}
	}
	return ways
}

func anewInRule(old, rule *Rule, zoneMoved bool) (list []string) {
	if !slices.Equal(dimensionsOf(old), dimensionsOf(rule)) {
		return []string{rule.Name + ": it counts per " + perText(rule) + " instead of per " + perText(old)}
	}
	if slices.Contains(dimensionsOf(rule), "endpoint") && old.Match != nil && rule.Match != nil &&
		slices.ContainsFunc(rule.Match.Path, func(path string) bool { return !slices.Contains(old.Match.Path, path) }) {
		list = append(list, rule.Name+": those of path patterns that are new")
	}
	if cmp.Or(old.Missing, "client") != cmp.Or(rule.Missing, "client") {
		list = append(list, rule.Name+": those of requests that lack what it counts per")
	}
	list = append(list, anewInShards(old, rule)...)
	seen := map[string]bool{}
	for _, tier := range tiersOf(old, rule) {
		had := countersOf(old.limitsOf(tier))
		for _, counter := range countersOf(rule.limitsOf(tier)) {
			line := ""
			switch {
			case !has(had, counter):
				line = ": its window or algorithm is new"
			case counter.calendar && zoneMoved:
				line = ": its windows begin at other times, by the new time zone"
			default:
				continue
			}
			if line = rule.Name + " " + counter.text + line; !seen[line] {
				seen[line] = true
				list = append(list, line)
			}
		}
	}
	return list
}

// anewInShards says what becomes of the counters of a rule that has another number of shards.
func anewInShards(old, rule *Rule) []string {
	was, is := 1, 1
	if old.Shards != nil {
		was = *old.Shards
	}
	if rule.Shards != nil {
		is = *rule.Shards
	}
	switch {
	case was == is:
		return nil
	case was == 1:
		return []string{fmt.Sprintf("%s: it has %d shards", rule.Name, is)}
	case is == 1:
		return []string{rule.Name + ": it has no shards"}
	case was < is:
		return []string{fmt.Sprintf("%s: the new %d of %d shards", rule.Name, is-was, is)}
	}
	return []string{fmt.Sprintf("%s: what was used in the last %d of %d shards counts no more", rule.Name, was-is, was)}
}

// shape is what tells apart the counters that a limit makes for each client.
type shape struct {
	text, key string
	calendar  bool
}

// has reports whether a counter is among others.
func has(counters []shape, one shape) bool {
	return slices.ContainsFunc(counters, func(c shape) bool { return c.key == one.key })
}

// countersOf returns the counters of limits; limits that cannot be read have none.
func countersOf(limits Words) (counters []shape) {
	for _, text := range limits {
		limit, err := core.ParseLimit(text)
		if err != nil {
			continue
		}
		key := limit.Algorithm().Label() + " " + limit.Window().String()
		if limit.Calendar() != 0 {
			key = limit.Calendar().String()
		}
		counters = append(counters, shape{text: text, key: key, calendar: limit.Calendar() != 0})
	}
	return counters
}

// tiersOf returns the tiers that either rule names, and "" for clients of none of them.
func tiersOf(a, b *Rule) []string {
	tiers := map[string]bool{"": true}
	for tier := range a.Tiers {
		tiers[tier] = true
	}
	for tier := range b.Tiers {
		tiers[tier] = true
	}
	return slices.Sorted(maps.Keys(tiers))
}

// limitsOf returns the limits of a client of that tier.
func (r *Rule) limitsOf(tier string) Words {
	if limits, ok := r.Tiers[tier]; ok {
		return limits
	}
	return r.Limit
}

// dimensionsOf returns what a rule counts per, in one order.
func dimensionsOf(r *Rule) []string {
	if r.Per == nil {
		return []string{"client"}
	}
	list := make([]string, 0, len(*r.Per))
	for _, word := range *r.Per {
		if name, ok := strings.CutPrefix(word, "header:"); ok {
			word = "header:" + strings.ToLower(name)
		}
		list = append(list, word)
	}
	slices.Sort(list)
	return list
}

func perText(r *Rule) string {
	if list := dimensionsOf(r); len(list) > 0 {
		return strings.Join(list, " and ")
	}
	return "nobody"
}

// goneByText returns the names of the rules that are gone, by what they say: a new rule that says the same was renamed. Of
// several that say the same it is the first.
func goneByText(before *Document, is map[string]*Rule) map[string]string {
	gone := map[string]string{}
	for i := range before.Rules {
		rule := &before.Rules[i]
		if is[rule.Name] != nil {
			continue
		}
		if text := namelessText(*rule); gone[text] == "" {
			gone[text] = rule.Name
		}
	}
	return gone
}

// namelessText is what a rule says but for its name.
func namelessText(r Rule) string {
	r.Name = ""
	data, _ := json.Marshal(r) // cannot fail: a rule has words and numbers only
	return string(data)
}
