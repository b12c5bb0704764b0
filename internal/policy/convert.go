// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
)

// Policy turns the document's words into types. The error is [core.Problems], with every word that means nothing; the
// policy then holds what could be read.
func (d *Document) Policy() (core.Policy, error) {
	c := converter{tree: d.tree}
	p := core.Policy{
		Name:     d.Name,
		Disabled: d.Enabled != nil && !*d.Enabled,
		Enforce:  choose(&c, "enforce", d.Enforce, enforces),
		OnError:  choose(&c, "on_error", d.OnError, onErrors),
		Lease:    choose(&c, "lease", d.Lease, leases),
		Headers:  c.headers(d.Headers),

		TrustedProxies: c.prefixes("trusted_proxies", d.TrustedProxies),
		TrustedHops:    c.atLeastOne("trusted_hops", d.TrustedHops),
		User:           c.sources("user", d.User),
		Tenant:         c.sources("tenant", d.Tenant),
		Tier:           c.sources("tier", d.Tier),
		Exempt:         c.lists("exempt", d.Exempt),
		Block:          c.lists("block", d.Block),
		Penalty:        c.penalty("penalty", d.Penalty),
		Timezone:       c.timezone("timezone", d.Timezone),
	}
	for i := range d.Identify {
		p.Identify = append(p.Identify, c.identify(index("identify", i), &d.Identify[i]))
	}
	for i := range d.Rules {
		p.Rules = append(p.Rules, c.rule(index("rules", i), &d.Rules[i]))
	}
	return p, c.err()
}

// choice is a word with what it stands for.
type choice[T any] struct {
	word  string
	value T
}

var (
	enforces = []choice[core.Enforce]{{"all", core.EnforceAll}, {"first", core.EnforceFirst}}
	onErrors = []choice[core.OnError]{{"allow", core.OnErrorAllow}, {"deny", core.OnErrorDeny}, {"local", core.OnErrorLocal}}
	leases   = []choice[core.Lease]{{"auto", core.LeaseAuto}, {"off", core.LeaseOff}}
	missings = []choice[core.Missing]{{"client", core.MissingClient}, {"share", core.MissingShare},
		{"skip", core.MissingSkip}, {"deny", core.MissingDeny}}
	actions = []choice[core.Action]{{"reject", core.ActionReject}, {"throttle", core.ActionThrottle},
		{"log_only", core.ActionLogOnly},
		{"allow", core.ActionAllow}, {"block", core.ActionBlock}}
	families = []choice[core.HeaderFamilies]{{"x-ratelimit", core.HeadersX}, {"ietf", core.HeadersIETF},
		{"none", core.HeadersNone}}
	slashes    = []choice[bool]{{"strict", true}}
	onInvalids = []choice[bool]{{"next", false}, {"deny", true}}
	dimensions = []choice[core.DimensionKind]{{"client", core.PerClient}, {"user", core.PerUser},
		{"api_key", core.PerAPIKey}, {"ip", core.PerIP}, {"tenant", core.PerTenant}, {"tier", core.PerTier},
		{"host", core.PerHost}, {"method", core.PerMethod}, {"endpoint", core.PerEndpoint}}
	namedDimensions = []choice[core.DimensionKind]{{"header", core.PerHeader}, {"attr", core.PerAttr}}
)

// converter collects the problems of words that stand in the right place and mean nothing.
type converter struct {
	report
	tree *Node
}

func (c *converter) problem(path, value, why, remedy string) {
	c.add(core.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: c.tree.place(path)})
}

// choose returns what a word stands for; no word is the zero value.
func choose[T any](c *converter, path, word string, among []choice[T]) (value T) {
	if word == "" {
		return value
	}
	known := make([]string, len(among))
	for i, candidate := range among {
		if candidate.word == word {
			return candidate.value
		}
		known[i] = candidate.word
	}
	remedy := "write " + alternatives(known)
	if near := nearest(word, known); near != "" {
		remedy = fmt.Sprintf("did you mean %q?", near)
	}
	c.problem(path, word, "is not known here", remedy)
	return value
}

func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0] + ", or leave the word out"
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func (c *converter) headers(list Words) (set core.HeaderFamilies) {
	for i, word := range list {
		set |= choose(c, index("headers", i), word, families)
	}
	if set&core.HeadersNone != 0 && set != core.HeadersNone {
		c.problem("headers", "", "none stands beside a family of headers", "write none alone, or leave it out")
		return core.HeadersNone
	}
	return set
}

// unknownDimension stands in the place of a word that could not be read, so that the others keep their numbers.
var unknownDimension = core.Dimension{Kind: ^core.DimensionKind(0)}

func (c *converter) dimension(path, word string) core.Dimension {
	kind, name, hasName := strings.Cut(word, ":")
	if !hasName {
		before := len(c.problems) + c.more
		value := choose(c, path, word, dimensions)
		if word == "" || len(c.problems)+c.more != before {
			return unknownDimension
		}
		return core.Dimension{Kind: value}
	}
	for _, named := range namedDimensions {
		if named.word != kind {
			continue
		}
		if name == "" {
			c.problem(path, word, "lacks a name", "write "+kind+":NAME")
			return unknownDimension
		}
		if named.value == core.PerHeader {
			name = textproto.CanonicalMIMEHeaderKey(name)
		}
		return core.Dimension{Kind: named.value, Name: name}
	}
	c.problem(path, word, "is not known here", "only header:NAME and attr:NAME take a name")
	return unknownDimension
}

func (c *converter) match(path string, d *Match) (m core.Match) {
	if d == nil {
		return m
	}
	m = core.Match{
		Path:          d.Path,
		Host:          d.Host,
		IP:            c.prefixes(path+".ip", d.IP),
		CaseSensitive: d.CaseSensitive,
		StrictSlash:   choose(c, path+".trailing_slash", d.TrailingSlash, slashes),
		Tier:          d.Tier,
		User:          d.User,
		APIKey:        d.APIKey,
		Tenant:        d.Tenant,
	}
	for _, method := range d.Method {
		m.Method = append(m.Method, strings.ToUpper(method))
	}
	for name, values := range d.Header {
		m.Header = append(m.Header, core.HeaderMatch{Name: textproto.CanonicalMIMEHeaderKey(name), Values: values})
	}
	slices.SortFunc(m.Header, func(a, b core.HeaderMatch) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range slices.Sorted(maps.Keys(d.Attr)) {
		m.Attr = append(m.Attr, core.AttrMatch{Name: name, Values: d.Attr[name]})
	}
	return m
}
