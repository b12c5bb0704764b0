// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Policy converts the document to a [policy.Policy]. The error is [policy.Problems], with every
// invalid value; the policy then has only the valid ones.
func (d *Document) Policy() (policy.Policy, error) {
	c := converter{tree: d.tree}
	p := policy.Policy{
		Name:     d.Name,
		Disabled: d.Enabled != nil && !*d.Enabled,
		Enforce:  choose(&c, "enforce", d.Enforce, enforces),
		OnError:  choose(&c, "on_error", d.OnError, onErrors),
		Lease:    choose(&c, "lease", d.Lease, leases),
		Headers:  c.headers(d.Headers),

		Directory: d.Directory,

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
		p.Identify = append(p.Identify, c.identify(Index("identify", i), &d.Identify[i]))
	}
	regions := c.regions(d)
	for i := range d.Rules {
		p.Rules = append(p.Rules, c.rule(Index("rules", i), &d.Rules[i]))
		regions.divide(Index("rules", i), d, &d.Rules[i], &p.Rules[i])
	}
	c.events(d) // called for its problems; see [Document.EventSettings]
	return p, c.Err()
}

// choice is a word of the policy language with its value.
type choice[T any] struct {
	word  string
	value T
}

var (
	enforces = []choice[policy.Enforce]{{"all", policy.EnforceAll}, {"first", policy.EnforceFirst}}
	onErrors = []choice[counter.OnError]{{"allow", counter.OnErrorAllow}, {"deny", counter.OnErrorDeny}, {"local", counter.OnErrorLocal}}
	leases   = []choice[policy.Lease]{{"auto", policy.LeaseAuto}, {"off", policy.LeaseOff}}
	missings = []choice[policy.Missing]{{"client", policy.MissingClient}, {"share", policy.MissingShare},
		{"skip", policy.MissingSkip}, {"deny", policy.MissingDeny}}
	actions = []choice[policy.Action]{{"reject", policy.ActionReject}, {"throttle", policy.ActionThrottle},
		{"log_only", policy.ActionLogOnly},
		{"allow", policy.ActionAllow}, {"block", policy.ActionBlock}}
	families = []choice[policy.HeaderFamilies]{{"x-ratelimit", policy.HeadersX}, {"ietf", policy.HeadersIETF},
		{"none", policy.HeadersNone}}
	slashes    = []choice[bool]{{"strict", true}}
	onInvalids = []choice[bool]{{"next", false}, {"deny", true}}
	dimensions = []choice[policy.DimensionKind]{{"client", policy.PerClient}, {"user", policy.PerUser},
		{"api_key", policy.PerAPIKey}, {"ip", policy.PerIP}, {"tenant", policy.PerTenant}, {"tier", policy.PerTier},
		{"host", policy.PerHost}, {"method", policy.PerMethod}, {"endpoint", policy.PerEndpoint}}
	namedDimensions = []choice[policy.DimensionKind]{{"header", policy.PerHeader}, {"attr", policy.PerAttr}}
)

// converter collects the problems of fields with invalid values.
type converter struct {
	syntax.Report
	tree *syntax.Node
}

func (c *converter) problem(path, value, why, remedy string) {
	c.Add(policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: c.tree.PlaceOf(path)})
}

// choose returns the value for a word, or the zero value if the word is empty.
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
	remedy := "write " + listAlternatives(known)
	if near := nearestWord(word, known); near != "" {
		remedy = fmt.Sprintf("did you mean %q?", near)
	}
	c.problem(path, word, "is not a known value", remedy)
	return value
}

func listAlternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0] + ", or leave it out"
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func (c *converter) headers(list Words) (set policy.HeaderFamilies) {
	for i, word := range list {
		set |= choose(c, Index("headers", i), word, families)
	}
	if set&policy.HeadersNone != 0 && set != policy.HeadersNone {
		c.problem("headers", "", "none conflicts with a family of headers", "write none alone, or leave it out")
		return policy.HeadersNone
	}
	return set
}

// unknownDimension replaces an invalid word, so that the other dimensions keep their indexes.
var unknownDimension = policy.Dimension{Kind: ^policy.DimensionKind(0)}

func (c *converter) dimension(path, word string) policy.Dimension {
	kind, name, hasName := strings.Cut(word, ":")
	if !hasName {
		before := len(c.Problems) + c.More
		value := choose(c, path, word, dimensions)
		if word == "" || len(c.Problems)+c.More != before {
			return unknownDimension
		}
		return policy.Dimension{Kind: value}
	}
	for _, named := range namedDimensions {
		if named.word != kind {
			continue
		}
		if name == "" {
			c.problem(path, word, "lacks a name", "write "+kind+":NAME")
			return unknownDimension
		}
		if named.value == policy.PerHeader {
			name = textproto.CanonicalMIMEHeaderKey(name)
		}
		return policy.Dimension{Kind: named.value, Name: name}
	}
	c.problem(path, word, "is not a known value", "only header:NAME and attr:NAME take a name")
	return unknownDimension
}

func (c *converter) convertMatch(path string, d *Match) (m policy.Match) {
	if d == nil {
		return m
	}
	m = policy.Match{
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
		m.Header = append(m.Header, policy.HeaderMatch{Name: textproto.CanonicalMIMEHeaderKey(name), Values: values})
	}
	slices.SortFunc(m.Header, func(a, b policy.HeaderMatch) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range slices.Sorted(maps.Keys(d.Attr)) {
		m.Attr = append(m.Attr, policy.AttrMatch{Name: name, Values: d.Attr[name]})
	}
	return m
}
