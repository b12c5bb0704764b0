// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/policyfile"
)

// Changes describes how a policy changed, for the log. The zero Changes means no change.
type Changes struct {
	// the changed fields of the policy itself: "identify", "headers"; and "order of rules"
	Words   []string
	Added   []string // the names of new rules
	Removed []string // the names of removed rules
	Changed []string // changed rules with their changed fields: "api (limit, cost)"
	// counters that restart, with the reason: "api 100/1h: its window or algorithm is new"
	Anew []string
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return len(c.Words)+len(c.Added)+len(c.Removed)+len(c.Changed)+len(c.Anew) == 0
}

// String returns the changes in one line.
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
		{"counters that start at zero", c.Anew},
	} {
		if len(part.list) > 0 {
			parts = append(parts, part.what+": "+strings.Join(part.list, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// Diff returns the differences between two documents. Both documents must have been compiled or
// checked: Diff ignores invalid values. Diff compares the text of fields, so writing out a default
// counts as a change.
func Diff(before, after *policyfile.Document) (c Changes) {
	c.Words = slices.DeleteFunc(changedFields(*before, *after), func(word string) bool { return word == "rules" })
	was, is := rulesByName(before), rulesByName(after)
	for i := range after.Rules {
		rule := &after.Rules[i]
		old, known := was[rule.Name]
		if !known {
			c.Added = append(c.Added, rule.Name)
			continue
		}
		if words := changedFields(*old, *rule); len(words) > 0 {
			c.Changed = append(c.Changed, rule.Name+" ("+strings.Join(words, ", ")+")")
		}
	}
	for i := range before.Rules {
		if _, kept := is[before.Rules[i].Name]; !kept {
			c.Removed = append(c.Removed, before.Rules[i].Name)
		}
	}
	if !slices.Equal(commonNames(before, is), commonNames(after, was)) {
		c.Words = append(c.Words, "order of rules")
	}
	c.Anew = restartedCounters(before, after, was, is)
	return c
}

// commonNames returns the names of the document's rules that are also in the map others, in the
// document's order.
func commonNames(d *policyfile.Document, others map[string]*policyfile.Rule) (names []string) {
	for i := range d.Rules {
		if name := d.Rules[i].Name; others[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

func rulesByName(d *policyfile.Document) map[string]*policyfile.Rule {
	rules := make(map[string]*policyfile.Rule, len(d.Rules))
	for i := range d.Rules {
		rules[d.Rules[i].Name] = &d.Rules[i]
	}
	return rules
}

// changedFields returns the names of the fields in which two values differ, in the order of the
// fields.
func changedFields[T any](a, b T) (changed []string) {
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	fields := policyfile.FieldsOf(v.Type())
	for _, word := range policyfile.FieldNames(v.Type()) {
		i := fields[word]
		if !reflect.DeepEqual(v.Field(i).Interface(), w.Field(i).Interface()) {
			changed = append(changed, word)
		}
	}
	return changed
}

// restartedCounters returns the counters that start at zero because their keys changed. The
// counters belong to rules that both documents have.
func restartedCounters(before, after *policyfile.Document, was, is map[string]*policyfile.Rule) (list []string) {
	if before.Name != after.Name {
		return []string{fmt.Sprintf("all: the policy was renamed from %q to %q", before.Name, after.Name)}
	}
	list = append(list, restartedByIdentity(before, after)...)
	zoneMoved := isZoneMoved(before, after)
	gone := removedByText(before, is)
	for i := range after.Rules {
		rule := &after.Rules[i]
		if old, known := was[rule.Name]; known {
			list = append(list, restartedInRule(old, rule, zoneMoved)...)
		} else if name := gone[namelessText(*rule)]; name != "" {
			list = append(list, fmt.Sprintf("%s: it was called %s", rule.Name, name))
		}
	}
	return list
}

// isZoneMoved reports whether the documents have different time zones, so that their calendar
// windows begin at different times.
func isZoneMoved(before, after *policyfile.Document) bool {
	return cmp.Or(before.Timezone, "UTC") != cmp.Or(after.Timezone, "UTC")
}

// restartedByIdentity returns the counters that restart because clients are now identified
// differently.
func restartedByIdentity(before, after *policyfile.Document) (list []string) {
	if !reflect.DeepEqual(identifySettings(before), identifySettings(after)) {
		list = append(list, "those of clients that are now identified differently")
	}
	if !reflect.DeepEqual(before.TrustedProxies, after.TrustedProxies) || !reflect.DeepEqual(before.TrustedHops, after.TrustedHops) {
		list = append(list, "those of clients whose address now has another source")
	}
	for _, source := range []struct {
		word          string
		before, after policyfile.Sources
	}{{"user", before.User, after.User}, {"tenant", before.Tenant, after.Tenant}, {"tier", before.Tier, after.Tier}} {
		counted := slices.ContainsFunc(after.Rules, func(r policyfile.Rule) bool { return slices.Contains(dimensionsOf(&r), source.word) })
		if counted && !reflect.DeepEqual(source.before, source.after) {
			list = append(list, "those per "+source.word+" of clients whose "+source.word+" is now taken from elsewhere")
		}
	}
	return list
}

// identifySettings returns the settings by which clients are identified, without refresh and
// leeway, which do not affect who a client is.
func identifySettings(d *policyfile.Document) []policyfile.Identify {
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

func restartedInRule(old, rule *policyfile.Rule, zoneMoved bool) (list []string) {
	if !slices.Equal(dimensionsOf(old), dimensionsOf(rule)) {
		return []string{rule.Name + ": it counts per " + describePer(rule) + " instead of per " + describePer(old)}
	}
	if slices.Contains(dimensionsOf(rule), "endpoint") && old.Match != nil && rule.Match != nil &&
		slices.ContainsFunc(rule.Match.Path, func(path string) bool { return !slices.Contains(old.Match.Path, path) }) {
		list = append(list, rule.Name+": those of new path patterns")
	}
	if cmp.Or(old.Missing, "client") != cmp.Or(rule.Missing, "client") {
		list = append(list, rule.Name+": those of requests that lack what it counts per")
	}
	list = append(list, restartedByShards(old, rule)...)
	seen := map[string]bool{}
	for _, tier := range tiersOf(old, rule) {
		had := countersOf(limitsOf(old, tier))
		for _, counter := range countersOf(limitsOf(rule, tier)) {
			line := ""
			switch {
			case !containsCounter(had, counter):
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

// restartedByShards returns the counters of a rule that restart because its number of shards
// changed.
func restartedByShards(old, rule *policyfile.Rule) []string {
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
	return []string{fmt.Sprintf("%s: the use of the last %d of %d shards is no longer counted", rule.Name, was-is, was)}
}

// shape identifies one of the counters that a rule has for each client.
type shape struct {
	text, key string
	calendar  bool
}

// containsCounter reports whether a list of counters contains a counter.
func containsCounter(counters []shape, one shape) bool {
	return slices.ContainsFunc(counters, func(c shape) bool { return c.key == one.key })
}

// countersOf returns the counters of limits; limits that cannot be read have none.
func countersOf(limits policyfile.Words) (counters []shape) {
	for _, text := range limits {
		limit, err := counter.ParseLimit(text)
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

// tiersOf returns the tiers that either rule names, and "" for clients of no such tier.
func tiersOf(a, b *policyfile.Rule) []string {
	tiers := map[string]bool{"": true}
	for tier := range a.Tiers {
		tiers[tier] = true
	}
	for tier := range b.Tiers {
		tiers[tier] = true
	}
	return slices.Sorted(maps.Keys(tiers))
}

// limitsOf returns the rule's limits for clients of the tier.
func limitsOf(r *policyfile.Rule, tier string) policyfile.Words {
	if limits, ok := r.Tiers[tier]; ok {
		return limits
	}
	return r.Limit
}

// dimensionsOf returns the rule's dimensions in a fixed order.
func dimensionsOf(r *policyfile.Rule) []string {
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

func describePer(r *policyfile.Rule) string {
	if list := dimensionsOf(r); len(list) > 0 {
		return strings.Join(list, " and ")
	}
	return "[]"
}

// removedByText maps the text of each removed rule, without its name, to its name. A new rule with
// the same text is a renamed rule. If several rules have the same text, the first counts.
func removedByText(before *policyfile.Document, is map[string]*policyfile.Rule) map[string]string {
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

// namelessText returns the text of a rule without its name.
func namelessText(r policyfile.Rule) string {
	r.Name = ""
	data, _ := json.Marshal(r) // this cannot fail, because a rule contains only words and numbers
	return string(data)
}
