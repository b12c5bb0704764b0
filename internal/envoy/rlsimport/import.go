// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/rls"
	"github.com/penstock/penstock/internal/policyfile"
)

// Import converts the configurations to a policy of the given name, in YAML. With sources, the
// policy is for a proxy, which sees requests. If sources is nil, the policy is for the rate limit
// protocol. The result named notes names the settings that could not be converted. The error is
// [policy.Problems]: errors of the configurations, and limits that a policy cannot express.
func Import(name string, files []File, sources Sources) (text []byte, notes policy.Problems, err error) {
	r := &reader{}
	var domains []*domain
	for _, f := range files {
		domains = r.file(f, domains)
	}
	if len(r.errors) > 0 {
		return nil, r.notes, r.errors
	}
	rules := generate(domains, sources)
	w := &writer{reader: r, sources: sources}
	head := headers
	if sources != nil {
		head = addresses
		if found := sources.problems(domains, rules); len(found) > 0 {
			return nil, r.notes, found
		}
	}
	w.noteBroader(rules)
	fmt.Fprintf(&w.out, "name: %s\n%srules:\n", name, head)
	for i, d := range domains {
		w.domain(d.name, rules[i])
	}
	if len(slices.Concat(rules...)) == 0 {
		w.out.Truncate(bytes.LastIndex(w.out.Bytes(), []byte("rules:")))
		r.note(files[0].Name, "descriptors", "", "have no limit: the policy limits nothing", "")
	}
	if w.years {
		// The service uses UTC. Without timezone, the policy would cause a warning.
		w.out.WriteString("timezone: UTC\n")
	}
	if err := check(w.out.Bytes()); err != nil {
		return nil, r.notes, err
	}
	return w.out.Bytes(), r.notes, nil
}

// headers turns off Penstock's rate limit fields. Envoy's filter can be configured to write such
// fields itself, as with envoyproxy/ratelimit. Clients would then get two contradicting sets.
const headers = "# Envoy writes X-RateLimit-* itself where its filter has enable_x_ratelimit_headers. To have the bridge\n" +
	"# write the rate limit headers, leave that setting out and remove this line.\n" +
	"headers: none\n"

// addresses makes the policy count each IPv6 address by itself, as the service does.
const addresses = "# Each IPv6 address has a counter of its own, as in envoyproxy/ratelimit. A client often has 2^64 of them:\n" +
	"# remove this line to count the first 64 bits as one client.\n" +
	"identify: [{ip: {ipv6_prefix: 128}}]\n"

// generate returns the rules of each domain.
func generate(domains []*domain, sources Sources) (rules [][]*rule) {
	names := map[string]bool{}
	groups := 0
	for _, d := range domains {
		g := &generator{names: names, groups: groups, sources: sources}
		g.generate(d.entries)
		groups = g.groups
		rules = append(rules, g.rules)
	}
	return rules
}

// check reads the policy that was written.
func check(text []byte) error {
	d, err := policyfile.Decode("policy", policyfile.YAML, text)
	if err == nil {
		err = d.Check()
	}
	if err == nil {
		return nil
	}
	var problems policy.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for i := range problems { // the positions would refer to a text that the user has not seen
		problems[i].Place = placeOf(text, problems[i].Place)
	}
	return problems
}

// placeOf returns the position in the configuration for a line of the policy. Each rule begins with
// a comment that names that position.
func placeOf(text []byte, place string) string {
	_, number, _ := strings.Cut(place, ":")
	line, err := strconv.Atoi(number)
	if err != nil {
		return place
	}
	lines := strings.Split(string(text), "\n")
	for i := min(line, len(lines)) - 1; i >= 0; i-- {
		if origin, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), "# from "); ok {
			return origin
		}
	}
	return place
}

// writer writes the policy.
type writer struct {
	*reader
	sources Sources // nil for the rate limit protocol
	out     bytes.Buffer
	named   map[string][]*rule // the rules of a domain's limits, by the limit's name
	years   bool               // a limit is per calendar year
}

func (w *writer) domain(name string, rules []*rule) {
	w.named = map[string][]*rule{}
	for _, r := range rules {
		if r.limit != nil && r.limit.name != "" {
			w.named[r.limit.name] = append(w.named[r.limit.name], r)
		}
	}
	for _, r := range rules {
		w.rule(name, r)
	}
}

func (w *writer) rule(domain string, r *rule) {
	fmt.Fprintf(&w.out, "  # from %s\n  - name: %s\n", r.place, r.name)
	var per []string
	if w.sources != nil {
		per = w.matchRequests(r)
	} else {
		per = w.matchDescriptors(domain, r)
	}
	if r.group != "" {
		fmt.Fprintf(&w.out, "    group: %s\n", r.group)
		if w.sources != nil { // otherwise a rule that names a path or a host would win
			fmt.Fprintf(&w.out, "    priority: %d\n", r.priority)
		}
	}
	switch {
	case r.limit == nil:
		w.out.WriteString("    action: allow\n")
		return
	case r.limit.unlimited:
		w.out.WriteString("    action: allow\n")
	case w.sources != nil && r.limit.count == 0:
		w.out.WriteString("    action: block # requests_per_unit: 0 denies every request\n    response: {status: 429}\n")
		return // a denied request counts for no limit, so there is none to replace
	default:
		w.limit(r, per)
	}
	w.replaces(r)
}

// matchDescriptors writes the setting named match of a rule for descriptors, and returns the items
// of per.
func (w *writer) matchDescriptors(domain string, r *rule) []string {
	match, per := r.attrs()
	fmt.Fprintf(&w.out, "    match:\n      attr:\n        %s: %s\n        %s: %s\n", rls.AttrDomain, quoteScalar(domain),
		rls.AttrDescriptor, quoteScalar(rls.Keys(r.keys...)))
	for _, name := range slices.Sorted(maps.Keys(match)) {
		fmt.Fprintf(&w.out, "        %s: %s\n", quoteScalar(name), quoteScalar(match[name]))
	}
	return per
}

// matchRequests writes the setting named match of a rule for requests that a proxy sees, and
// returns the items of per.
func (w *writer) matchRequests(r *rule) []string {
	m := w.sources.conditions(r)
	if len(m.fields)+len(m.headers)+len(m.attrs) > 0 {
		w.out.WriteString("    match:\n")
	}
	for _, line := range m.fields {
		fmt.Fprintf(&w.out, "      %s\n", line)
	}
	for _, of := range []struct {
		field string
		lines []string
	}{{"header", m.headers}, {"attr", m.attrs}} {
		if len(of.lines) > 0 {
			fmt.Fprintf(&w.out, "      %s:\n        %s\n", of.field, strings.Join(of.lines, "\n        "))
		}
	}
	return m.per
}

// dimension returns an item of the setting per as a YAML scalar.
func dimension(text string) string {
	if _, name, named := strings.Cut(text, ":"); named && quoteScalar(name) == name {
		return text
	}
	return quoteScalar(text)
}

// neverThere is an attribute that no descriptor has. A rule that counts by it and has "missing:
// deny" denies every request that it matches. "action: block" would deny them too, but a block
// ignores groups, so no other rule of the group could win.
const neverThere = "envoy.never"

func (w *writer) limit(r *rule, per []string) {
	count := r.limit.count
	switch {
	case count == 0:
		w.out.WriteString("    # requests_per_unit: 0 denies every request: no request has this attribute\n")
		fmt.Fprintf(&w.out, "    per: [attr:%s]\n    missing: deny\n", neverThere)
		count = 1
	case len(per) == 0:
		w.out.WriteString("    per: []\n")
	default:
		names := make([]string, len(per))
		for i, name := range per {
			names[i] = dimension(name)
		}
		fmt.Fprintf(&w.out, "    per: [%s]\n", strings.Join(names, ", "))
		if !slices.Equal(per, []string{"method"}) { // no request lacks a method
			w.out.WriteString("    missing: share\n")
		}
		if slices.ContainsFunc(per, func(name string) bool { return strings.HasPrefix(name, "header:") }) {
			w.out.WriteString("    unverified: true\n")
		}
	}
	window := windows[r.limit.unit]
	if r.limit.unit == "year" {
		w.years = true
		fmt.Fprintf(&w.out, "    limit: %d/year\n", count)
		w.note(r.limit.place, "rate_limit.unit", "year", "is a calendar year here, and 365 days counted from 1970 in the service",
			"no change is needed: the count is the same, the day it restarts is not")
	} else {
		fmt.Fprintf(&w.out, "    limit: %d/%s fixed_window\n", count, window)
	}
	if r.last.quota {
		w.out.WriteString("    quota: true\n")
	}
	switch {
	case r.last.shadow:
		w.out.WriteString("    action: log_only\n")
	case len(per) == 0 && r.limit.count > 0:
		w.out.WriteString("    expose: true\n") // clients see the limit, as in the service
	}
}

// writer.replaces writes the rules that this limit replaces.
func (w *writer) replaces(r *rule) {
	var names []string
	for _, name := range r.limit.replaces {
		if len(w.named[name]) == 0 {
			w.note(r.limit.place, "rate_limit.replaces", name, "names no limit of the domain", "leave it out")
		}
		for _, other := range w.named[name] {
			if other != r {
				names = append(names, other.name)
			}
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(&w.out, "    replaces: [%s]\n", strings.Join(names, ", "))
	}
}

// plain matches texts that every YAML parser reads as the same string.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`)

// loaded lists words that some YAML parsers interpret as another type.
var loaded = []string{"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"}

// quoteScalar returns a text as a YAML scalar.
func quoteScalar(text string) string {
	if plain.MatchString(text) && !slices.Contains(loaded, strings.ToLower(text)) {
		return text
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // encoding a string never fails
	return strings.TrimSuffix(b.String(), "\n")
}
