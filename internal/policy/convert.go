// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
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
		Headers:  c.headers(d.Headers),
	}
	for i := range d.Identify {
		p.Identify = append(p.Identify, c.identify(index("identify", i), &d.Identify[i]))
	}
	for i := range d.Rules {
		p.Rules = append(p.Rules, c.rule(index("rules", i), &d.Rules[i]))
	}
	if d.Exempt != nil {
		p.Exempt = []core.Listed{{IP: c.prefixes("exempt.ip", d.Exempt.IP)}}
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
	onErrors = []choice[core.OnError]{{"allow", core.OnErrorAllow}, {"deny", core.OnErrorDeny}}
	missings = []choice[core.Missing]{{"client", core.MissingClient}, {"share", core.MissingShare},
		{"skip", core.MissingSkip}, {"deny", core.MissingDeny}}
	actions = []choice[core.Action]{{"reject", core.ActionReject}, {"log_only", core.ActionLogOnly},
		{"allow", core.ActionAllow}, {"block", core.ActionBlock}}
	families = []choice[core.HeaderFamilies]{{"x-ratelimit", core.HeadersX}, {"ietf", core.HeadersIETF},
		{"none", core.HeadersNone}}
	slashes    = []choice[bool]{{"strict", true}}
	dimensions = []choice[core.DimensionKind]{{"client", core.PerClient}, {"ip", core.PerIP}, {"host", core.PerHost},
		{"method", core.PerMethod}, {"endpoint", core.PerEndpoint}}
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
	if slices.Contains(laterValues[lastWord(path)], word) {
		c.problem(path, word, notYet, "write "+alternatives(known))
		return value
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

func (c *converter) identify(path string, d *Identify) (id core.Identify) {
	switch {
	case d.IP != nil:
		id.IPv4Prefix = c.bits(path+".ip.ipv4_prefix", d.IP.IPv4Prefix, 32)
		id.IPv6Prefix = c.bits(path+".ip.ipv6_prefix", d.IP.IPv6Prefix, 128)
	case d.Header != nil:
		id.Kind = core.IdentifyHeader
		id.Name, id.Unverified = textproto.CanonicalMIMEHeaderKey(d.Header.Name), d.Header.Unverified
	case d.Attr != "":
		id.Kind, id.Name = core.IdentifyAttr, d.Attr
	default:
		c.problem(path, "", "says nothing", identifyRemedy)
	}
	return id
}

func (c *converter) bits(path string, prefix *int, most int) int {
	if prefix == nil {
		return 0
	}
	if *prefix < 1 || *prefix > most {
		c.problem(path, fmt.Sprint(*prefix), fmt.Sprintf("is not between 1 and %d", most), "")
		return 0
	}
	return *prefix
}

func (c *converter) rule(path string, d *Rule) core.Rule {
	r := core.Rule{
		Name:       d.Name,
		Match:      c.match(path+".match", d.Match),
		PerNone:    d.Per != nil && len(*d.Per) == 0,
		Group:      d.Group,
		Priority:   d.Priority,
		Disabled:   d.Enabled != nil && !*d.Enabled,
		Missing:    choose(c, path+".missing", d.Missing, missings),
		Unverified: d.Unverified,
		Action:     choose(c, path+".action", d.Action, actions),
		OnError:    choose(c, path+".on_error", d.OnError, onErrors),
		Expose:     d.Expose,
	}
	if d.Per != nil {
		for i, word := range *d.Per {
			r.Per = append(r.Per, c.dimension(index(path+".per", i), word))
		}
	}
	for i, text := range d.Limit {
		limit, err := core.ParseLimit(text)
		if err != nil {
			c.limit(index(path+".limit", i), text, err) // none stands in its place: the others keep their numbers
		}
		r.Limits = append(r.Limits, limit)
	}
	for i := range d.Cost {
		r.Cost = append(r.Cost, c.cost(index(path+".cost", i), &d.Cost[i]))
	}
	return r
}

// limit reports a limit that could not be read, and puts what its error advises where remedies stand.
func (c *converter) limit(path, text string, err error) {
	why, remedy := err.Error(), ""
	for _, verb := range []string{": write ", ": lower "} {
		if at := strings.LastIndex(why, verb); at >= 0 {
			why, remedy = why[:at], why[at+len(": "):]
		}
	}
	c.problem(path, text, why, remedy)
}

func (c *converter) cost(path string, d *Cost) core.Cost {
	if d.N < 1 || d.N > core.CountMax {
		c.problem(path+".n", fmt.Sprint(d.N), fmt.Sprintf("is not between 1 and %d", core.CountMax),
			"write how many units a request takes")
	}
	return core.Cost{Match: c.match(path+".match", d.Match), N: d.N}
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
	}
	for _, method := range d.Method {
		m.Method = append(m.Method, strings.ToUpper(method))
	}
	for name, values := range d.Header {
		m.Header = append(m.Header, core.HeaderMatch{Name: textproto.CanonicalMIMEHeaderKey(name), Values: values})
	}
	slices.SortFunc(m.Header, func(a, b core.HeaderMatch) int { return strings.Compare(a.Name, b.Name) })
	return m
}

func (c *converter) prefixes(path string, texts Words) (prefixes []netip.Prefix) {
	for i, text := range texts {
		if prefix, ok := c.prefix(index(path, i), text); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

func (c *converter) prefix(path, text string) (netip.Prefix, bool) {
	const remedy = "write 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32"
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			c.problem(path, text, "is not an IP address or CIDR range", remedy)
			return netip.Prefix{}, false
		}
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	if prefix.Addr().Is4In6() {
		c.problem(path, text, "is an IPv4 address written as IPv6", "write the IPv4 range")
		return netip.Prefix{}, false
	}
	if masked := prefix.Masked(); masked != prefix {
		c.problem(path, text, "has an address beyond its range", "write "+masked.String())
		return netip.Prefix{}, false
	}
	return prefix, true
}
