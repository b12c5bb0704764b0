// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"strings"
)

// partSet is a set of the parts that a condition can have.
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

// condition is one compiled [Match]. It is immutable and safe for concurrent use. The zero condition always holds.
type condition struct {
	// everyReading makes a path that servers read in more than one way (see reading) match only if each of its readings
	// does; otherwise one is enough. It is for conditions that excuse a request (action allow); set it before newMatcher.
	everyReading bool

	patterns []pattern // the most specific first; endpoint wants them even if one matches every path
	parts    partSet   // what there is to compare: a path that may be any is no part
	methods  []string
	hosts    []hostPattern
	headers  []headerCondition
	attrs    []attrCondition
	prefixes []netip.Prefix   // masked, IPv4 unmapped
	client   *clientCondition // nil: anybody
}

// clientField names what a condition, or a list, can say of the client.
type clientField uint8

const (
	clientTier clientField = iota
	clientUser
	clientAPIKey
	clientTenant
	clientFields
)

// of returns what the client has there, "" if it has nothing.
func (f clientField) of(who *Identity) string {
	switch f {
	case clientTier:
		return who.Tier
	case clientUser:
		return who.User
	case clientAPIKey:
		return who.APIKey
	default:
		return who.Tenant
	}
}

// clientTable maps what clients have to numbers, field by field.
type clientTable [clientFields]map[string]int32

func (t *clientTable) set(field int, value string, number int32) {
	if t[field] == nil {
		t[field] = make(map[string]int32)
	}
	t[field][value] = number
}

// clientCondition is what the client must be: of each field that lists values, one of them.
type clientCondition [clientFields][]string

// hostPattern is a host's name in lower case; with any, whatever stands before it (".example.com") may not be empty.
type hostPattern struct {
	name string
	any  bool
}

// headerCondition is a header that must be present and have one of the values, if there are any.
type headerCondition struct {
	name   string // canonical
	values []headerValue
	table  *valueTable // of many values, for a list of many elements; nil of few
}

// fewValues is up to how many values an element is compared with one by one.
const fewValues = 16

// headerValue is a value, or with prefix what it must start with. It is compared exactly.
type headerValue struct {
	text   string
	prefix bool
}

// holds reports whether every part of the condition holds.
func (c *condition) holds(r *request) bool { return c.holdsParts(r, partsAll) }

// holdsParts reports whether those parts of the condition hold that are asked for.
func (c *condition) holdsParts(r *request, asked partSet) bool {
	asked &= c.parts
	return (asked&partMethod == 0 || slices.Contains(c.methods, r.method)) &&
		(asked&partIP == 0 || c.holdsIP(r.peer)) &&
		(asked&partHost == 0 || c.holdsHost(r.host)) &&
		(asked&partPath == 0 || c.holdsPath(r)) &&
		(asked&partClient == 0 || c.client.holds(r.client)) &&
		(asked&partHeader == 0 || c.holdsHeaders(r.attrs)) &&
		(asked&partAttr == 0 || c.holdsAttrs(r))
}

// holds reports whether the client is one that is listed. Nobody is.
func (c *clientCondition) holds(who *Identity) bool {
	if who == nil {
		return false
	}
	for f, values := range c {
		if len(values) > 0 && !slices.Contains(values, clientField(f).of(who)) {
			return false
		}
	}
	return true
}

func (c *condition) holdsPath(r *request) bool {
	for i := range r.readings {
		if (c.matching(&r.readings[i]) != nil) != c.everyReading {
			return !c.everyReading
		}
	}
	return c.everyReading
}

// matching returns the first pattern that matches the path read so, or nil.
func (c *condition) matching(r *reading) *pattern {
	for i := range c.patterns {
		if c.patterns[i].matches(r) {
			return &c.patterns[i]
		}
	}
	return nil
}

func (c *condition) holdsHost(host string) bool {
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

func (c *condition) holdsIP(peer netip.Addr) bool {
	for _, p := range c.prefixes {
		if p.Contains(peer) {
			return true
		}
	}
	return false
}

func (c *condition) holdsHeaders(a Attributes) bool {
	for i := range c.headers {
		h := &c.headers[i]
		value, ok := a.Header(h.name)
		if !ok || len(h.values) > 0 && !h.matches(value) {
			return false
		}
	}
	return true
}

// matches reports whether the field's value, or one element of it if it is a list, is one of the values. Lists are taken
// apart because a header that is sent twice arrives as one: sending it twice must not be a way around a rule. Quotes are
// not interpreted.
func (h *headerCondition) matches(value string) bool {
	if tooLongList(value) { // and not enforced, see compares
		return false
	}
	if h.matchesElement(value) {
		return true
	}
	for more := strings.IndexByte(value, ',') >= 0; more; {
		var element string
		element, value, more = strings.Cut(value, ",")
		if h.matchesElement(strings.Trim(element, " \t")) {
			return true
		}
	}
	return false
}

func (h *headerCondition) matchesElement(element string) bool {
	if h.table != nil {
		return h.table.has(element)
	}
	for i := range h.values {
		v := &h.values[i]
		if v.text == element || v.prefix && strings.HasPrefix(element, v.text) {
			return true
		}
	}
	return false
}

// endpoint returns the path pattern that the request matches, in its canonical spelling: of several the most specific,
// of equals the one listed first. ok is false if the condition has no path patterns or none matches.
func (c *condition) endpoint(r *request) (text string, ok bool) {
	for i := range c.patterns {
		for j := range r.readings {
			if c.patterns[i].matches(&r.readings[j]) {
				return c.patterns[i].text, true
			}
		}
	}
	return "", false
}

// endpointSpecific reports whether the condition names a path, a method or a host. A pattern that every path matches
// names none.
func (c *condition) endpointSpecific() bool { return c.parts&(partPath|partMethod|partHost) != 0 }

// tierSpecific reports whether the condition names a tier.
func (c *condition) tierSpecific() bool { return c.client != nil && len(c.client[clientTier]) > 0 }
