// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"
)

// matcher finds which of many conditions hold for a request. It is immutable and safe for concurrent use.
//
// Each condition stands in the index under one part of it only, the one that fewest others share: its paths, hosts,
// address ranges, methods, the values of one header or attribute, or of one field of the client. A request looks up its own path, host,
// address, method, client and the headers that are in the index, and what it finds under them is compared in the other parts. So the work grows with what
// is found, not with the number of conditions. What it cannot help: each header name in the index is one question to the
// request, and conditions that share all their parts with many others are compared one by one.
type matcher struct {
	conditions []condition
	compare    []partSet // of each condition, what finding it leaves open
	always     []int32   // conditions that the index cannot find
	numbers    []int32   // conditions, list after list
	starts     []int32   // where each list starts in numbers; list 0 is empty

	paths   pathTrie
	hosts   map[string]int32 // lists; what may stand before a host starts with "."
	hostAny int              // the longest that starts with "."
	ranges  rangeTables
	methods map[string]int32
	headers []valueTable
	attrs   []valueTable // their values are no lists, and are taken whole
	clients clientTable
}

// valueTable maps the values of one header or attribute to lists.
type valueTable struct {
	name     string
	present  int32 // whatever the value
	exact    map[string]int32
	prefixes prefixTable
}

// has reports whether the element is one of the values.
func (t *valueTable) has(element string) bool {
	if t.exact[element] != 0 {
		return true
	}
	for _, length := range t.prefixes.lengths {
		if int(length) <= len(element) && t.prefixes.numbers[element[:length]] != 0 {
			return true
		}
	}
	return false
}

// appendMatches appends to dst the index of every condition that holds, in ascending order. It does not allocate once
// dst and the request's buffers have grown.
func (m *matcher) appendMatches(dst []int32, r *request) []int32 {
	base := len(dst)
	dst = m.verify(dst, m.always, r)
	if len(m.paths.nodes) > 0 {
		dst = m.appendPaths(dst, r)
	}
	if m.hosts != nil {
		dst = m.appendHosts(dst, r)
	}
	if r.peer.IsValid() {
		dst = m.appendRanges(dst, m.ranges.of(r.peer), r)
	}
	if m.methods != nil {
		dst = m.appendList(dst, m.methods[r.method], r)
	}
	if r.client != nil {
		dst = m.appendClients(dst, r)
	}
	for i := range m.headers {
		t := &m.headers[i]
		if value, ok := r.attrs.Header(t.name); ok {
			dst = m.appendValue(dst, t, value, true, r)
		}
	}
	for i := range m.attrs {
		t := &m.attrs[i]
		if value, ok := r.attrs.Attr(t.name); ok {
			dst = m.appendValue(dst, t, value, false, r)
		}
	}
	found := dst[base:]
	if !ascending(found) {
		sortNumbers(found, func(a, b int32) bool { return a < b })
		found = slices.Compact(found)
	}
	return dst[:base+len(found)]
}

func ascending(numbers []int32) bool {
	for i := 1; i < len(numbers); i++ {
		if numbers[i-1] >= numbers[i] {
			return false
		}
	}
	return true
}

func (m *matcher) appendList(dst []int32, list int32, r *request) []int32 {
	if list == 0 {
		return dst
	}
	return m.verify(dst, m.numbers[m.starts[list]:m.starts[list+1]], r)
}

// verify appends those of the conditions found that hold.
func (m *matcher) verify(dst, found []int32, r *request) []int32 {
	for _, number := range found {
		if open := m.compare[number]; open == 0 || m.conditions[number].holdsParts(r, open) {
			dst = append(dst, number)
		}
	}
	return dst
}

func (m *matcher) appendPaths(dst []int32, r *request) []int32 {
	for i := range r.readings {
		m.paths.find(&r.search, r.readings[i].folded)
		for _, list := range r.search.lists {
			dst = m.appendList(dst, list, r)
		}
	}
	return dst
}

func (m *matcher) appendHosts(dst []int32, r *request) []int32 {
	if r.host == "" {
		return dst
	}
	if r.host[0] != '.' {
		dst = m.appendList(dst, m.hosts[r.host], r)
	}
	// An entry ".example.com" needs something before it. No suffix longer than the longest entry can be one.
	for at := max(1, len(r.host)-m.hostAny); m.hostAny > 0; at++ {
		dot := strings.IndexByte(r.host[min(at, len(r.host)):], '.')
		if dot < 0 {
			break
		}
		at += dot
		dst = m.appendList(dst, m.hosts[r.host[at:]], r)
	}
	return dst
}

func (m *matcher) appendRanges(dst []int32, t *rangeTable, r *request) []int32 {
	if t.numbers == nil {
		return dst
	}
	key := newAddrKey(r.peer)
	for _, bits := range t.bits {
		dst = m.appendList(dst, t.numbers[key.masked(bits)], r)
	}
	return dst
}

func (m *matcher) appendClients(dst []int32, r *request) []int32 {
	for f, lists := range m.clients {
		if lists != nil {
			dst = m.appendList(dst, lists[clientField(f).of(r.client)], r)
		}
	}
	return dst
}

// appendValue looks the value up whole, and, where it may be a list, element by element.
func (m *matcher) appendValue(dst []int32, t *valueTable, value string, mayBeList bool, r *request) []int32 {
	dst = m.appendList(dst, t.present, r)
	switch {
	case t.exact == nil && t.prefixes.numbers == nil,
		mayBeList && tooLongList(value), // and not enforced, see compares
		!mayBeList && r.tooLong(value):
		return dst
	}
	r.search.seen.start(len(m.starts))
	dst = m.appendElement(dst, t, value, r)
	for more := mayBeList && strings.IndexByte(value, ',') >= 0; more; {
		var element string
		element, value, more = strings.Cut(value, ",")
		dst = m.appendElement(dst, t, strings.Trim(element, " \t"), r)
	}
	return dst
}

// appendElement looks one element up. A list is compared once, however often an element is repeated.
func (m *matcher) appendElement(dst []int32, t *valueTable, element string, r *request) []int32 {
	if list := t.exact[element]; list != 0 && r.search.seen.mark(list) {
		dst = m.appendList(dst, list, r)
	}
	for _, length := range t.prefixes.lengths {
		if int(length) > len(element) {
			continue
		}
		if list := t.prefixes.numbers[element[:length]]; list != 0 && r.search.seen.mark(list) {
			dst = m.appendList(dst, list, r)
		}
	}
	return dst
}
