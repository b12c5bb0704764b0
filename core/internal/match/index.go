// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// Matcher finds which of many conditions hold for a request. A Matcher is immutable and safe for
// concurrent use.
//
// The index lists each condition under only one of its parts, the one that it shares with the
// fewest conditions. The paths are one part, and so are the hosts, the address ranges, the methods,
// the values of one header or attribute, and those of one client field. A Matcher looks up a
// request's path, host, address, method, client, and indexed headers. It then compares the other
// parts of each condition that was found. So the work grows with the number of conditions found,
// not with the number of all conditions. Two costs remain: each indexed header name takes one
// lookup, and conditions that share all their parts with many others are compared one by one.
type Matcher struct {
	conditions []Condition
	compare    []partSet // for each condition, the parts to compare after it was found
	always     []int32   // conditions that are compared for every request
	numbers    []int32   // the conditions of all lists
	starts     []int32   // the start of each list in numbers; list 0 is empty

	paths   pathTrie
	packed  *bitTrie         // of paths; nil if there are too many
	hosts   map[string]int32 // list by host; a key that starts with "." is a suffix
	hostAny int              // the length of the longest suffix
	ranges  RangeTables
	methods map[string]int32
	headers []valueTable
	attrs   []valueTable // an attribute is compared as a whole, not as a list
	clients ClientTable
}

// valueTable maps the values of one header or attribute to lists.
type valueTable struct {
	name     string
	present  int32 // the list for any value
	exact    map[string]int32
	prefixes prefixTable
}

// hasValue reports whether the element is one of the values or, unless exact is set, begins with
// one of the prefixes.
func (t *valueTable) hasValue(element string, exact bool) bool {
	if found := t.exact[element] != 0; found || exact {
		return found
	}
	for i := range t.prefixes.lookups() {
		if t.prefixes.lookup(i, element) != 0 {
			return true
		}
	}
	return false
}

// AppendMatches appends to dst the index of each condition that holds, in ascending order. After
// dst and the request's buffers have grown, AppendMatches does not allocate.
func (m *Matcher) AppendMatches(dst []int32, r *Request) []int32 {
	base := len(dst)
	dst = m.verify(dst, m.always, r)
	if len(m.paths.nodes) > 0 {
		dst = m.appendPaths(dst, r)
	}
	if m.hosts != nil {
		dst = m.appendHosts(dst, r)
	}
	if r.Peer.IsValid() {
		dst = m.appendRanges(dst, m.ranges.Of(r.Peer), r)
	}
	if m.methods != nil {
		dst = m.appendList(dst, m.methods[r.Method], r)
	}
	if r.Client != nil {
		dst = m.appendClients(dst, r)
	}
	for i := range m.headers {
		t := &m.headers[i]
		if value, ok := r.Attrs.Header(t.name); ok {
			dst = m.appendValue(dst, t, value, true, r)
		}
	}
	for i := range m.attrs {
		t := &m.attrs[i]
		if value, ok := r.Attrs.Attr(t.name); ok {
			dst = m.appendValue(dst, t, value, false, r)
		}
	}
	found := dst[base:]
	if !areAscending(found) {
		slim.SortNumbers(found, func(a, b int32) bool { return a < b })
		found = slices.Compact(found)
	}
	return dst[:base+len(found)]
}

func areAscending(numbers []int32) bool {
	for i := 1; i < len(numbers); i++ {
		if numbers[i-1] >= numbers[i] {
			return false
		}
	}
	return true
}

func (m *Matcher) appendList(dst []int32, list int32, r *Request) []int32 {
	if list == 0 {
		return dst
	}
	return m.verify(dst, m.numbers[m.starts[list]:m.starts[list+1]], r)
}

// Matcher.verify appends the found conditions that hold.
func (m *Matcher) verify(dst, found []int32, r *Request) []int32 {
	for _, number := range found {
		if open := m.compare[number]; open == 0 || m.conditions[number].holdsParts(r, open, m.conditions[number].EveryReading) {
			dst = append(dst, number)
		}
	}
	return dst
}

func (m *Matcher) appendPaths(dst []int32, r *Request) []int32 {
	for i := range r.Readings {
		if m.packed != nil {
			m.packed.find(&r.search, r.Readings[i].folded)
		} else {
			m.paths.find(&r.search, r.Readings[i].folded)
		}
		for _, list := range r.search.lists {
			dst = m.appendList(dst, list, r)
		}
	}
	return dst
}

func (m *Matcher) appendHosts(dst []int32, r *Request) []int32 {
	if r.Host == "" {
		return dst
	}
	if r.Host[0] != '.' {
		dst = m.appendList(dst, m.hosts[r.Host], r)
	}
	// A host matches the suffix ".example.com" only if text precedes the suffix. No candidate text
	// is longer than the longest suffix.
	for at := max(1, len(r.Host)-m.hostAny); m.hostAny > 0; at++ {
		dot := strings.IndexByte(r.Host[min(at, len(r.Host)):], '.')
		if dot < 0 {
			break
		}
		at += dot
		dst = m.appendList(dst, m.hosts[r.Host[at:]], r)
	}
	return dst
}

func (m *Matcher) appendRanges(dst []int32, t *rangeTable, r *Request) []int32 {
	if t.Numbers == nil {
		return dst
	}
	key := NewAddrKey(r.Peer)
	for _, bits := range t.Bits {
		dst = m.appendList(dst, t.Numbers[key.Masked(bits)], r)
	}
	return dst
}

func (m *Matcher) appendClients(dst []int32, r *Request) []int32 {
	for f, lists := range m.clients {
		if lists != nil {
			dst = m.appendList(dst, lists[ClientField(f).Of(r.Client)], r)
		}
	}
	return dst
}

// appendValue looks up the whole value. If the value may be a list, appendValue also looks up each
// element.
func (m *Matcher) appendValue(dst []int32, t *valueTable, value string, mayBeList bool, r *Request) []int32 {
	dst = m.appendList(dst, t.present, r)
	switch {
	case t.exact == nil && t.prefixes.entries == nil,
		mayBeList && TooLongList(value), // core denies the request if an enforced rule compares the header
		!mayBeList && r.TooLong(value):
		return dst
	}
	r.search.seen.start(len(m.starts))
	dst = m.appendElement(dst, t, value, r)
	for more := mayBeList && strings.IndexByte(value, ',') >= 0; more; {
		var element string
		element, value, more = strings.Cut(value, ",")
		dst = m.appendElement(dst, t, slim.Trim(element, " \t"), r)
	}
	return dst
}

// appendElement looks up one element. The conditions of a list are compared once, however often an
// element is repeated.
func (m *Matcher) appendElement(dst []int32, t *valueTable, element string, r *Request) []int32 {
	if list := t.exact[element]; list != 0 && r.search.seen.markNumber(list) {
		dst = m.appendList(dst, list, r)
	}
	for i := range t.prefixes.lookups() {
		if list := t.prefixes.lookup(i, element); list != 0 && r.search.seen.markNumber(list) {
			dst = m.appendList(dst, list, r)
		}
	}
	return dst
}
