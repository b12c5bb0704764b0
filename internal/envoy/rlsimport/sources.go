// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
)

// Sources maps the keys of descriptors to parts of a request that a proxy sees itself.
type Sources map[string]source

// source is a part of a request that can be named in the settings called match and per. A constant
// entry has the value that the configuration names, in every request.
type source struct {
	kind string // ip, path, method, host, header, attr or constant
	name string // the name of the header or attribute
}

const constant = "constant"

// ParseSources reads sources as the command line has them: KEY=ip, KEY=path, KEY=method, KEY=host,
// KEY=header:NAME and KEY=attr:NAME, and KEY alone for a constant. Without texts, the result is
// nil.
func ParseSources(texts []string) (Sources, error) {
	var s Sources
	for _, text := range texts {
		key, from := text, constant
		if at := strings.LastIndex(text, "="); at >= 0 {
			key, from = text[:at], text[at+1:]
		}
		kind, name, named := strings.Cut(from, ":")
		_, twice := s[key]
		switch {
		case key == "":
			return nil, fmt.Errorf("--entry %q names no key: write --entry KEY=SOURCE", text)
		case twice:
			return nil, fmt.Errorf("--entry %q: the key %q has a source already: name one", text, key)
		case from == constant && key == text:
		case named && name != "" && (kind == "header" || kind == "attr"):
		case !named && slices.Contains([]string{"ip", "path", "method", "host"}, kind):
		default:
			return nil, fmt.Errorf("--entry %q: %q is not a source: write ip, path, method, host, header:NAME or attr:NAME, "+
				"or the key alone if the entry always has its value", text, from)
		}
		if s == nil {
			s = Sources{}
		}
		s[key] = source{kind, name}
	}
	return s, nil
}

// String returns the name that the source has in the settings match and per.
func (s source) String() string {
	if s.name != "" {
		return s.kind + ":" + s.name
	}
	return s.kind
}

// entry.hasCounters reports whether the service has a counter for each value that the entry
// stands for.
func (e *entry) hasCounters() bool { return e.value == "" || e.wild() && !e.share }

// maskedAddress is the key of Envoy's action for networks.
const maskedAddress = "masked_remote_address"

// source.rejects returns the reason why the source cannot express an entry, and the remedy. The
// reason is "" if the source can express the entry.
func (s source) rejects(e *entry) (why, remedy string) {
	stars := strings.Count(e.value, "*")
	inside := stars > 1 || stars == 1 && !strings.HasSuffix(e.value, "*")
	switch s.kind {
	case constant:
		if e.value == "" || stars > 0 {
			return "stands for any value, and --entry " + e.key + " for the one that is named",
				"name where the value comes from: --entry " + e.key + "=header:NAME"
		}
	case "ip":
		addr, err := netip.ParseAddr(e.value)
		switch {
		case e.key == maskedAddress:
			return "is a network, and ip is an address", "write the rule in a policy, with ipv4_prefix or ipv6_prefix"
		case e.value != "" && (err != nil || addr.Unmap().WithZone("").String() != e.value):
			return "is not an address in its usual form", "write one like 192.0.2.7 or 2001:db8::7"
		}
	case "path":
		switch {
		case e.hasCounters():
			return "has a counter for each path, which policies do not have", "write share_threshold: true for one counter of a " +
				"pattern; or for Envoy only --entry " + e.key + "=attr:request.url_path"
		case inside:
			return "has a star before its end, which stands for one segment in a policy", "write one star, at the end; or for " +
				"Envoy only --entry " + e.key + "=attr:request.url_path"
		}
	case "method":
		if stars > 0 || e.value != strings.ToUpper(e.value) {
			return "is not a method in capital letters", "write one entry for each method, such as GET"
		}
	case "host":
		suffix, ok := strings.CutPrefix(e.value, "*.")
		isSubdomains := ok && suffix != "" && stars == 1
		switch {
		case stars > 0 && !isSubdomains:
			return "is a pattern that policies do not have for hosts", `write "*.example.com", or an entry for each host`
		case e.value != strings.ToLower(e.value) || strings.HasSuffix(e.value, "."):
			return "is not a host in its usual form", "write it in lower case, without a dot at its end"
		}
	case "header":
		if inside {
			return "has a star before its end, which policies do not have for headers", "write one star, at the end"
		}
	}
	return "", ""
}

// Sources.problems returns the problems of the domains: what the sources cannot express, and keys
// without a source.
func (s Sources) problems(domains []*domain, rules [][]*rule) (found policy.Problems) {
	if len(domains) > 1 {
		found = append(found, policy.Problem{Path: "domain", Value: domains[1].name, Place: domains[1].place,
			Why: "is a second domain, and requests have none", Remedy: "import each domain by itself, and give each policy a --name"})
	}
	used, seen, replaced := map[string]bool{}, map[*entry]bool{}, replacedNames(rules)
	for _, r := range slices.Concat(rules...) {
		for _, e := range r.steps {
			used[e.key] = true
			if !seen[e] {
				seen[e] = true
				found = append(found, s.entry(e)...)
			}
		}
		found = append(found, s.rule(r, replaced)...)
	}
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if !used[key] {
			found = append(found, policy.Problem{Path: "--entry", Value: key, Why: "is the key of no entry with a limit", Remedy: "leave it out"})
		}
	}
	return found
}

// Sources.entry returns the problem if a proxy cannot supply the values of an entry, and nil
// otherwise.
func (s Sources) entry(e *entry) policy.Problems {
	from, mapped := s[e.key]
	if !mapped {
		return policy.Problems{{Path: e.path + ".key", Value: e.key, Place: e.place, Why: "has no source, and a proxy sees no descriptors",
			Remedy: "add --entry " + e.key + "=SOURCE, or --entry " + e.key + " if it always has its value"}}
	}
	why, remedy := from.rejects(e)
	if why == "" {
		return nil
	}
	value := e.value
	if value == "" {
		value = e.key
	}
	return policy.Problems{{Path: e.path, Value: value, Place: e.place, Why: why, Remedy: remedy}}
}

// Sources.rule returns a problem for each part of a rule that no rule of a proxy can express.
func (s Sources) rule(r *rule, replaced map[string]bool) (found policy.Problems) {
	wrong := func(why, remedy string) {
		found = append(found, policy.Problem{Path: r.steps[len(r.steps)-1].path, Value: r.name, Place: r.place, Why: why, Remedy: remedy})
	}
	names := map[string]bool{}
	for _, e := range r.steps {
		from := s[e.key]
		if name := strings.ToLower(from.String()); from.kind != constant && names[name] {
			wrong("has two entries from "+from.String()+", which has one value", "give each key a source of its own")
		} else {
			names[name] = true
		}
	}
	if r.limit == nil || r.limit.unlimited {
		return found
	}
	if r.last.quota {
		wrong("has quota_mode, which compares the descriptors of one request", "leave quota_mode out, and the limit denies by itself")
	}
	if r.limit.count > 0 {
		return found
	}
	switch {
	case r.last.shadow:
		wrong("denies everything, and nothing in shadow_mode", "leave the limit out")
	case r.behind:
		wrong("denies what another entry may admit, and a rule of a proxy that denies everything takes precedence", "write requests_per_unit: 1")
	case replaced[r.limit.name]:
		wrong("denies everything, and another limit replaces it", "leave out replaces, or write requests_per_unit: 1")
	}
	return found
}

// replacedNames returns the names that limits have in the setting replaces.
func replacedNames(rules [][]*rule) map[string]bool {
	names := map[string]bool{}
	for _, r := range slices.Concat(rules...) {
		if r.limit != nil {
			for _, name := range r.limit.replaces {
				names[name] = true
			}
		}
	}
	return names
}

// metConditions holds the conditions of a rule, as lines of the setting match, and the items of the
// setting per.
type metConditions struct{ fields, headers, attrs, per []string }

// Sources.conditions returns the conditions under which the rule applies in a proxy, and the
// dimensions by which it counts.
func (s Sources) conditions(r *rule) (m metConditions) {
	for _, e := range r.steps {
		from, value := s[e.key], quoteScalar(e.value)
		if e.value == "" {
			value = "[]" // the entry is missing from a descriptor without the header
		}
		switch {
		case from.kind == "header":
			m.headers = append(m.headers, quoteScalar(from.name)+": "+value)
		case from.kind == "attr":
			m.attrs = append(m.attrs, quoteScalar(from.name)+": "+value)
		case from.kind == "path":
			m.fields = append(m.fields, "path: "+value, "case_sensitive: true", "trailing_slash: strict")
		case from.kind != constant && e.value != "":
			m.fields = append(m.fields, from.kind+": "+value)
		}
		if from.kind != constant && e.hasCounters() {
			m.per = append(m.per, from.String())
		}
	}
	return m
}

// writer.noteBroader notes each pattern that matches one path more in a policy than in the
// service.
func (w *writer) noteBroader(rules [][]*rule) {
	noted := map[*entry]bool{}
	for _, r := range slices.Concat(rules...) {
		for _, e := range r.steps {
			base, below := strings.CutSuffix(e.value, "/*")
			if below && base != "" && w.sources[e.key].kind == "path" && !noted[e] {
				noted[e] = true
				w.note(e.place, e.path+".value", e.value, "matches "+base+" too in a policy", "no change is needed if it should")
			}
		}
	}
}

// Sources.meet reports whether some request has a value that matches both texts of a key: see
// [meet]. In a policy, a path ending in a slash and a star also matches the path without them, and
// escapes are decoded.
func (s Sources) meet(key, a, b string) bool {
	if s[key].kind != "path" {
		return meet(a, b)
	}
	return strings.Contains(a+b, "%") || meet(a, b) || meet(strings.TrimSuffix(a, "/*"), b) || meet(a, strings.TrimSuffix(b, "/*"))
}
