// SPDX-License-Identifier: Apache-2.0

package match

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// partSet is a set of parts of a condition.
type partSet uint8

const (
	partPath partSet = 1 << iota
	partHost
	partIP
	partHeader
	partMethod
	partClient
	partAttr
	partsAll = partPath | partHost | partIP | partHeader | partMethod | partClient | partAttr
)

// Condition is a compiled [policy.Match]. A Condition is immutable and safe for concurrent use. The
// zero Condition always holds.
type Condition struct {
	// EveryReading applies to a path that servers read in several ways (see readingSet), and to a
	// header with several elements, of which a server may read any. If EveryReading is set, all
	// readings and all elements must match; otherwise one is enough. EveryReading is meant for
	// conditions that exempt a request (action allow). Set it before calling NewMatcher.
	EveryReading bool

	Patterns []pattern // most specific first; Endpoint needs them even if one matches every path
	parts    partSet   // the parts to compare, without the path if every path matches
	methods  []string
	hosts    []hostPattern
	Headers  []headerCondition
	attrs    []attrCondition
	prefixes []netip.Prefix   // masked, IPv4 unmapped
	client   *clientCondition // nil means any client
}

// ReadsHost reports whether the condition compares the host.
func (c *Condition) ReadsHost() bool { return len(c.hosts) > 0 }

// ClientField is a field of the client that a condition or a list can name.
type ClientField uint8

const (
	ClientTier ClientField = iota
	ClientUser
	ClientAPIKey
	ClientTenant
	ClientFields
)

// Of returns the client's value of the field, or "" if it has none.
func (f ClientField) Of(who *policy.Identity) string {
	switch f {
	case ClientTier:
		return who.Tier
	case ClientUser:
		return who.User
	case ClientAPIKey:
		return who.APIKey
	default:
		return who.Tenant
	}
}

// ClientTable maps the values of each client field to numbers.
type ClientTable [ClientFields]map[string]int32

// Set maps a value of the field to the number.
func (t *ClientTable) Set(field int, value string, number int32) {
	if t[field] == nil {
		t[field] = make(map[string]int32)
	}
	t[field][value] = number
}

// clientCondition lists values by client field. For each field with values, the client must have
// one of them.
type clientCondition [ClientFields][]string

// hostPattern is a host name in lower case. If the field any is set, name begins with a dot
// (".example.com"), and the pattern matches every longer host that ends in name.
type hostPattern struct {
	name string
	any  bool
}

// headerCondition is a header that must be present. If Values is not empty, the header must have
// one of these values.
type headerCondition struct {
	Name   string // canonical
	Values []headerValue
	table  *valueTable // for an element-wise lookup among many values; nil for few
}

// fewValues is the greatest number of values with which an element or an attribute is compared one
// by one.
const fewValues = 16

// headerValue is a value of a header or, if prefix is set, a prefix of values. The comparison is
// exact.
type headerValue struct {
	text   string
	prefix bool
}

// Holds reports whether every part of the condition holds.
func (c *Condition) Holds(r *Request) bool { return c.holdsParts(r, partsAll, c.EveryReading) }

// holdsParts reports whether the given parts of the condition hold, if every is set for every
// reading of the path and every element of the headers.
func (c *Condition) holdsParts(r *Request, asked partSet, every bool) bool {
	asked &= c.parts
	return (asked&partMethod == 0 || slices.Contains(c.methods, r.Method)) &&
		(asked&partIP == 0 || c.holdsIP(r.Peer)) &&
		(asked&partHost == 0 || c.holdsHost(r.Host)) &&
		(asked&partPath == 0 || c.holdsPath(r, every)) &&
		(asked&partClient == 0 || c.client.holds(r.Client)) &&
		(asked&partHeader == 0 || c.holdsHeaders(r.Attrs, every)) &&
		(asked&partAttr == 0 || c.holdsAttrs(r))
}

// clientCondition.holds reports whether the client has a listed value in each field that lists
// values. An unknown client has none.
func (c *clientCondition) holds(who *policy.Identity) bool {
	if who == nil {
		return false
	}
	for f, values := range c {
		if len(values) > 0 && !slices.Contains(values, ClientField(f).Of(who)) {
			return false
		}
	}
	return true
}

// holdsPath reports whether the patterns match at least one reading of the path or, if every is
// set, all readings. If the path was not read, no pattern matches.
func (c *Condition) holdsPath(r *Request, every bool) bool {
	for i := range r.Readings {
		if (c.firstMatch(&r.Readings[i]) != nil) != every {
			return !every
		}
	}
	return every && !r.Long
}

// Condition.firstMatch returns the first pattern that matches the reading, or nil.
func (c *Condition) firstMatch(r *pathReading) *pattern {
	for i := range c.Patterns {
		if c.Patterns[i].matches(r) {
			return &c.Patterns[i]
		}
	}
	return nil
}

func (c *Condition) holdsHost(host string) bool {
	for i := range c.hosts {
		if c.hosts[i].matches(host) {
			return true
		}
	}
	return false
}

func (h *hostPattern) matches(host string) bool {
	if h.any {
		return len(host) > len(h.name) && strings.HasSuffix(host, h.name)
	}
	return host == h.name
}

func (c *Condition) holdsIP(peer netip.Addr) bool {
	for _, p := range c.prefixes {
		if p.Contains(peer) {
			return true
		}
	}
	return false
}

func (c *Condition) holdsHeaders(a policy.Attributes, every bool) bool {
	for i := range c.Headers {
		h := &c.Headers[i]
		value, ok := a.Header(h.Name)
		if !ok || len(h.Values) > 0 && !h.Matches(value, every) {
			return false
		}
	}
	return true
}

// Matches reports whether one of the condition's values equals the field's value or, if that is a
// list, one of its elements. Matches compares elements because a header that is sent twice arrives
// as a list, and a client must not evade a rule by sending a header twice. Quotes are not
// interpreted.
//
// If every is set, all elements of a list must match, because a server may read any of them. The
// whole value is enough if the condition lists it without a star, or if the field is not a list.
func (h *headerCondition) Matches(value string, every bool) bool {
	if TooLongList(value) { // core denies such a request if an enforced rule compares the header
		return false
	}
	list := strings.IndexByte(value, ',') >= 0
	if h.matchesElement(value, every && list && !slices.Contains(singleFields, h.Name)) {
		return true
	}
	for more := list; more; {
		var element string
		element, value, more = strings.Cut(value, ",")
		if h.matchesElement(slim.Trim(element, " \t"), false) != every {
			return !every
		}
	}
	return list && every
}

// singleFields are the request headers, by canonical name, that by definition have one value, in
// which commas occur.
var singleFields = []string{"Authorization", "Cookie", "Date", "If-Modified-Since", "If-Range", "If-Unmodified-Since",
	"Referer", "User-Agent"}

// matchesElement reports whether one of the condition's values matches the element. If exact is
// set, values with a star match nothing.
func (h *headerCondition) matchesElement(element string, exact bool) bool {
	if h.table != nil {
		return h.table.hasValue(element, exact)
	}
	for i := range h.Values {
		v := &h.Values[i]
		if !(exact && v.prefix) && (v.text == element || v.prefix && strings.HasPrefix(element, v.text)) {
			return true
		}
	}
	return false
}

// Endpoint returns the canonical spelling of the path pattern that matches the request. If several
// match, it returns the most specific one, and among equally specific ones the first in the list.
// The result ok is false if no path pattern matches.
func (c *Condition) Endpoint(r *Request) (text string, ok bool) {
	for i := range c.Patterns {
		for j := range r.Readings {
			if c.Patterns[i].matches(&r.Readings[j]) {
				return c.Patterns[i].text, true
			}
		}
	}
	return "", false
}

// Endpoints returns the canonical spellings of the path patterns, the most specific first.
func (c *Condition) Endpoints() []string {
	texts := make([]string, len(c.Patterns))
	for i := range c.Patterns {
		texts[i] = c.Patterns[i].text
	}
	return texts
}

// EndpointIndex returns the index in Endpoints of the path pattern that matches the request, -1 if
// none does. The argument most bounds the number of patterns that EndpointIndex compares.
func (c *Condition) EndpointIndex(r *Request, most int) int {
	if len(c.Patterns) == 1 {
		return 0
	}
	for i := range c.Patterns[:min(most, len(c.Patterns))] {
		for j := range r.Readings {
			if c.Patterns[i].matches(&r.Readings[j]) {
				return i
			}
		}
	}
	return -1
}

// NewEndpoint returns the path pattern that matches one reading of the path. NewEndpoint returns ""
// if none does, or if an earlier reading matches the same pattern.
func (c *Condition) NewEndpoint(r *Request, reading int) string {
	found := c.firstMatch(&r.Readings[reading])
	if found == nil {
		return ""
	}
	for i := range reading {
		if c.firstMatch(&r.Readings[i]) == found {
			return ""
		}
	}
	return found.text
}

// EndpointSpecific reports whether the condition names a path, a method or a host. A pattern that
// matches every path does not count.
func (c *Condition) EndpointSpecific() bool { return c.parts&(partPath|partMethod|partHost) != 0 }

// tierSpecific reports whether the condition names a tier.
func (c *Condition) tierSpecific() bool { return c.client != nil && len(c.client[ClientTier]) > 0 }

// Certain reports whether a condition that holds does so for every reading of the path and every
// element of the headers.
//
//go:noinline
func (c *Condition) Certain(req *Request) bool {
	asked := partHeader
	if len(req.Readings) > 1 {
		asked |= partPath
	}
	return c.holdsParts(req, asked, true)
}

// CertainPath reports whether a condition that holds does so for every reading of the path.
func (c *Condition) CertainPath(req *Request) bool {
	return len(req.Readings) <= 1 || c.holdsParts(req, partPath, true)
}
