// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/rls"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// File is one configuration file.
type File struct {
	Name string // for locations in messages
	Data []byte
}

// entry is a descriptor of the configuration. Descriptors of requests are looked up in these
// entries.
type entry struct {
	key, value string // value is "" for any value
	place      string
	path       string // in the configuration: descriptors[0]
	limit      *limit // nil: none
	shadow     bool   // it never denies
	quota      bool   // if several descriptors have quota_mode, it is enough if one of them has room
	share      bool
	children   []*entry
}

// limit is the rate_limit of an entry.
type limit struct {
	unlimited bool
	count     int64
	unit      string // the unit in lower case
	name      string
	replaces  []string
	place     string
}

// entry.wild reports whether the entry's value is a pattern: a star, at any position, matches
// any run of characters.
func (e *entry) wild() bool { return strings.Contains(e.value, "*") }

// domain holds the entries of one domain, from any number of files.
type domain struct {
	name    string
	place   string
	entries []*entry
}

// reader reads configurations. A reader reports errors for configurations that envoyproxy/ratelimit
// rejects too, for YAML that parsers interpret differently, and for limits that a policy cannot
// express. A reader adds notes for all other settings that cannot be converted.
type reader struct {
	errors, notes policy.Problems
}

func (r *reader) addProblem(n *syntax.Node, path, why, remedy string) {
	r.errors = append(r.errors, policy.Problem{Path: path, Value: n.Text, Why: why, Remedy: remedy, Place: n.Place})
}

func (r *reader) note(place, path, value, why, remedy string) {
	r.notes = append(r.notes, policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: place})
}

// reader.file reads one file and adds its domain to the known ones.
func (r *reader) file(f File, domains []*domain) []*domain {
	tree, err := syntax.SharedTree(f.Name, f.Data)
	if err != nil {
		if problems, ok := err.(policy.Problems); ok {
			r.errors = append(r.errors, problems...)
		} else {
			r.errors = append(r.errors, policy.Problem{Path: "yaml", Why: err.Error(), Place: f.Name})
		}
		return domains
	}
	if tree == nil || tree.Kind != syntax.KindMap {
		r.errors = append(r.errors, policy.Problem{Path: "yaml", Place: f.Name, Why: "is not a configuration of envoyproxy/ratelimit",
			Remedy: "name a file with domain and descriptors"})
		return domains
	}
	// Name is for xDS servers only.
	words := r.words(tree, "configuration", "domain", "descriptors", "name")
	name := r.text(words["domain"], "domain")
	if name == "" {
		r.addProblem(tree, "domain", "is missing", "name the domain")
		return domains
	}
	at := slices.IndexFunc(domains, func(d *domain) bool { return d.name == name })
	if at < 0 {
		domains, at = append(domains, &domain{name: name, place: tree.Place}), len(domains)
	}
	domains[at].entries = r.entries(words["descriptors"], "descriptors", domains[at].entries, 1)
	return domains
}

// reader.words returns the values of a mapping by their keys. It reports a problem for a key that
// is not in the list named known.
func (r *reader) words(n *syntax.Node, path string, known ...string) map[string]*syntax.Node {
	found := map[string]*syntax.Node{}
	if n.Kind != syntax.KindMap {
		r.addProblem(n, path, "is "+n.Kind.String()+" where a mapping belongs", "")
		return found
	}
	for _, e := range n.Entries {
		at := &syntax.Node{Text: e.Key, Place: e.Place}
		switch {
		case !slices.Contains(known, e.Key):
			r.addProblem(at, path, "is an unknown field", "the fields are "+strings.Join(known, ", "))
		case found[e.Key] != nil:
			r.addProblem(at, path, "is listed twice, and the service takes the last", "leave one of them out")
		default:
			found[e.Key] = e.Value
		}
	}
	return found
}

// reader.text returns a string, number or bool as it is written; "" for none.
func (r *reader) text(n *syntax.Node, path string) string {
	switch {
	case n == nil || n.Kind == syntax.KindNull:
		return ""
	case n.Kind == syntax.KindList || n.Kind == syntax.KindMap:
		r.addProblem(n, path, "is "+n.Kind.String()+" where a single value belongs", "")
		return ""
	}
	return n.Text
}

func (r *reader) flag(n *syntax.Node, path string) bool {
	text := r.text(n, path)
	if text == "" {
		return false
	}
	is, known := bools[text]
	if !known {
		r.addProblem(n, path, "is neither true nor false", "write true or false")
	}
	return is
}

// bools lists the words that mean true or false in YAML 1.1, which the service reads.
var bools = func() map[string]bool {
	all := map[string]bool{}
	for word, is := range map[string]bool{"true": true, "yes": true, "on": true, "y": true, "false": false, "no": false, "off": false, "n": false} {
		all[word], all[strings.ToUpper(word)], all[strings.ToUpper(word[:1])+word[1:]] = is, is, is
	}
	return all
}()

// reader.count reads requests_per_unit. Like the service, it accepts any base, and underscores.
func (r *reader) count(n *syntax.Node, path string) int64 {
	text := r.text(n, path)
	if text == "" {
		return 0
	}
	digits := strings.ReplaceAll(text, "_", "")
	if len(digits) > 1 && strings.Trim(digits, "01234567") == "" && digits[0] == '0' {
		r.addProblem(n, path, "begins with 0, which some readers take for octal", "write the number without it")
		return 0
	}
	count, err := strconv.ParseUint(strings.TrimPrefix(digits, "+"), 0, 32)
	if err != nil {
		r.addProblem(n, path, "is not an integer from 0 to 4294967295", "write decimal digits")
	}
	return int64(count)
}

func (r *reader) items(n *syntax.Node, path string) []*syntax.Node {
	switch {
	case n == nil || n.Kind == syntax.KindNull:
		return nil
	case n.Kind != syntax.KindList:
		r.addProblem(n, path, "is "+n.Kind.String()+" where a list belongs", "")
		return nil
	}
	return n.Items
}

// depthMax is the greatest nesting depth of descriptors. Package rls rejects descriptors with more
// entries.
const depthMax = 32

// reader.entries merges the entries of a list with those at the same place in other files.
func (r *reader) entries(n *syntax.Node, path string, known []*entry, depth int) []*entry {
	if depth > depthMax {
		r.addProblem(n, path, "is nested too deep", fmt.Sprintf("nest %d lists at most", depthMax))
		return known
	}
	for i, item := range r.items(n, path) {
		e := r.entry(item, path+"["+strconv.Itoa(i)+"]", depth)
		if e == nil {
			continue
		}
		if slices.ContainsFunc(known, func(o *entry) bool { return o.key == e.key && o.value == e.value }) {
			r.addProblem(&syntax.Node{Text: strings.Trim(e.key+" "+e.value, " "), Place: e.place}, path, "is listed twice", "leave one of them out")
			continue
		}
		known = append(known, e)
	}
	return known
}

func (r *reader) entry(n *syntax.Node, path string, depth int) *entry {
	words := r.words(n, path, "key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric",
		"value_to_metric", "share_threshold", "metadata")
	e := &entry{key: r.text(words["key"], path+".key"), value: r.text(words["value"], path+".value"), place: n.Place, path: path,
		shadow: r.flag(words["shadow_mode"], path+".shadow_mode"), quota: r.flag(words["quota_mode"], path+".quota_mode"), share: r.flag(words["share_threshold"], path+".share_threshold")}
	switch {
	case e.key == "":
		r.addProblem(n, path+".key", "is missing", "name the key")
		return nil
	case e.key == rls.AttrDomain || e.key == rls.AttrDescriptor:
		r.addProblem(words["key"], path+".key", "is reserved by the service", "rename it in Envoy's actions")
		return nil
	case strings.Contains(e.key, "*"):
		r.addProblem(words["key"], path+".key", "is a pattern of keys, which policies do not have", "write an entry for each key")
		return nil
	}
	if e.share && !e.wild() {
		r.addProblem(words["share_threshold"], path+".share_threshold", "needs a value with a star", "leave it out")
	}
	if node := words["rate_limit"]; node != nil && node.Kind != syntax.KindNull {
		e.limit = r.limit(node, path+".rate_limit")
	}
	if e.quota && e.limit != nil && !e.limit.unlimited && e.limit.count == 0 {
		r.addProblem(words["quota_mode"], path+".quota_mode", "needs a count above 0: a count of 0 never admits",
			"leave out quota_mode to deny, or the limit to admit")
	}
	r.lost(words, path)
	e.children = r.entries(words["descriptors"], path+".descriptors", nil, depth+1)
	return e
}

// reader.lost adds a note about each field of an entry that has no counterpart in a
// policy.
func (r *reader) lost(words map[string]*syntax.Node, path string) {
	for _, word := range []struct{ name, why, remedy string }{
		{"detailed_metric", "is left out: metrics are by rule, never by values of a request", "look at the busiest clients instead"},
		{"value_to_metric", "is left out: metrics are by rule, never by values of a request", "look at the busiest clients instead"},
	} {
		if n := words[word.name]; n != nil && r.flag(n, path+"."+word.name) {
			r.note(n.Place, path+"."+word.name, "", word.why, word.remedy)
		}
	}
	if n := words["metadata"]; n != nil {
		r.note(n.Place, path+".metadata", "", "is left out: answers carry no dynamic metadata",
			"let another filter of Envoy set it")
	}
}

func (r *reader) limit(n *syntax.Node, path string) *limit {
	words := r.words(n, path, "unit", "requests_per_unit", "unlimited", "name", "replaces")
	l := &limit{unlimited: r.flag(words["unlimited"], path+".unlimited"), place: n.Place,
		unit: strings.ToLower(r.text(words["unit"], path+".unit")), name: r.text(words["name"], path+".name")}
	_, known := windows[l.unit]
	switch {
	case l.unlimited && known:
		r.addProblem(words["unit"], path+".unit", "conflicts with unlimited", "leave one of them out")
	case !l.unlimited && !known:
		at := words["unit"]
		if at == nil {
			at = n
		}
		r.addProblem(at, path+".unit", "is not a unit", "write second, minute, hour, day, week, month or year")
	}
	l.count = r.count(words["requests_per_unit"], path+".requests_per_unit")
	for i, item := range r.items(words["replaces"], path+".replaces") {
		at := path + ".replaces[" + strconv.Itoa(i) + "]"
		switch name := r.text(r.words(item, at, "name")["name"], at+".name"); {
		case name == "":
			r.addProblem(item, at+".name", "is missing", "name the limit that is replaced")
		case name == l.name:
			r.addProblem(item, at+".name", "is the limit itself", "leave it out")
		case !slices.Contains(l.replaces, name):
			l.replaces = append(l.replaces, name)
		}
	}
	return l
}

// windows maps each unit to a window as a policy writes it. The service counts days, weeks and
// months as spans from 1970, with months of 30 days. These windows are the same spans.
var windows = map[string]string{"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d",
	"year": "year"}
