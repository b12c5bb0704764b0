// SPDX-License-Identifier: Apache-2.0

package match

import (
	"net/netip"
	"slices"
	"strconv"
)

// place is an entry of the index under which a condition can be found. A condition that is
// indexed by one of its parts is listed in all places of that part.
type place struct {
	part   partSet
	header int    // partHeader, partAttr: the index of the header or attribute; partClient: the field
	key    string // distinguishes the places of one part
	open   bool   // the part must still be compared after a lookup
	insert func(m *Matcher, list int32)
}

// placeID identifies a place. Conditions in one place share a list.
type placeID struct {
	part partSet
	key  string
}

func (p *place) id() placeID { return placeID{p.part, p.key} }

// NewMatcher builds the index of the conditions cs. The Matcher keeps cs.
func NewMatcher(cs []Condition) *Matcher {
	m := &Matcher{conditions: cs, compare: make([]partSet, len(cs))}
	places := make([][]place, len(cs))
	shared := make(map[placeID]int)
	for i := range cs {
		places[i] = cs[i].places()
		for j := range places[i] {
			shared[places[i][j].id()]++
		}
	}
	lists := [][]int32{nil}
	known := make(map[placeID]int32)
	for i := range cs {
		chosen := choosePlaces(places[i], shared)
		m.compare[i] = cs[i].parts
		if len(chosen) == 0 {
			m.always = append(m.always, int32(i))
		} else if !slices.ContainsFunc(chosen, func(p place) bool { return p.open }) {
			m.compare[i] &^= chosen[0].part
		}
		for j := range chosen {
			list, ok := known[chosen[j].id()]
			if !ok {
				list = int32(len(lists))
				lists = append(lists, nil)
				known[chosen[j].id()] = list
				chosen[j].insert(m, list)
			}
			lists[list] = append(lists[list], int32(i))
		}
	}
	m.storeLists(lists)
	m.packed = m.paths.packedTrie()
	return m
}

// storeLists stores the lists in one array, so that the data for one request is close together in
// memory.
func (m *Matcher) storeLists(lists [][]int32) {
	for _, entries := range lists {
		m.starts = append(m.starts, int32(len(m.numbers)))
		m.numbers = append(m.numbers, slices.Compact(entries)...)
	}
	m.starts = append(m.starts, int32(len(m.numbers)))
}

// choosePlaces returns the places of the part that the condition shares with the fewest other
// conditions. If several parts tie, it chooses the first. Each header and each client field counts
// as a separate part.
func choosePlaces(all []place, shared map[placeID]int) (best []place) {
	least := 0
	for len(all) > 0 {
		n, others := 0, 0
		for n < len(all) && all[n].part == all[0].part && all[n].header == all[0].header {
			others += shared[all[n].id()]
			n++
		}
		if best == nil || others < least {
			best, least = all[:n], others
		}
		all = all[n:]
	}
	return best
}

// Condition.places lists the places where the condition could be listed, part by part, in ascending
// order of lookup cost.
func (c *Condition) places() []place {
	var all []place
	if c.parts&partPath != 0 {
		for i := range c.Patterns {
			all = appendPlace(all, c.Patterns[i].place(c.EveryReading))
		}
	}
	for _, h := range c.hosts {
		all = appendPlace(all, h.place())
	}
	for _, p := range c.prefixes {
		all = appendPlace(all, rangePlace(p))
	}
	if c.client != nil {
		all = c.client.appendPlaces(all)
	}
	for i := range c.Headers {
		all = c.Headers[i].appendPlaces(all, i, c.EveryReading, c.EveryReading || len(c.Headers) > 1)
	}
	for i := range c.attrs {
		all = c.attrs[i].appendPlaces(all, i, len(c.attrs) > 1)
	}
	for _, method := range c.methods {
		all = appendPlace(all, place{part: partMethod, key: method, insert: func(m *Matcher, list int32) {
			if m.methods == nil {
				m.methods = make(map[string]int32)
			}
			m.methods[method] = list
		}})
	}
	return all
}

// appendPlace appends a place. If the compiler inlined it at each call, the filter would be larger.
//
//go:noinline
func appendPlace(all []place, p place) []place { return append(all, p) }

func (p *pattern) place(everyReading bool) place {
	var key []byte
	for _, s := range p.segments {
		key = append(key, '/', byte('0'+s.kind))
		key = appendFolded(key, s.text)
	}
	open := everyReading || p.caseSensitive || p.slash != slashAny
	return place{part: partPath, key: string(key), open: open, insert: func(m *Matcher, list int32) {
		m.paths.insert(p.segments, list)
	}}
}

func (h hostPattern) place() place {
	return place{part: partHost, key: h.name, insert: func(m *Matcher, list int32) {
		if m.hosts == nil {
			m.hosts = make(map[string]int32)
		}
		m.hosts[h.name] = list
		if h.any {
			m.hostAny = max(m.hostAny, len(h.name))
		}
	}}
}

func rangePlace(p netip.Prefix) place {
	return place{part: partIP, key: p.String(), insert: func(m *Matcher, list int32) { m.ranges.Set(p, list) }}
}

func (c *clientCondition) appendPlaces(all []place) []place {
	fields := 0
	for _, values := range c {
		fields += min(1, len(values))
	}
	for f, values := range c {
		for _, value := range values {
			all = appendPlace(all, place{part: partClient, header: f, key: strconv.Itoa(f) + value, open: fields > 1,
				insert: func(m *Matcher, list int32) { m.clients.Set(f, value, list) }})
		}
	}
	return all
}

// headerCondition.appendPlaces appends the places of the values. If every element of a header must
// match, and there are many values, the place is that of any value: otherwise a header with all of
// them would find the condition once for each, and each time all elements would be compared.
func (h *headerCondition) appendPlaces(all []place, header int, every, open bool) []place {
	if len(h.Values) == 0 || every && h.table != nil {
		return appendValuePlace(all, partHeader, header, h.Name, nil, open)
	}
	for i := range h.Values {
		all = appendValuePlace(all, partHeader, header, h.Name, &h.Values[i], open)
	}
	return all
}

// appendValuePlace appends the place of a value of a header or attribute, or of any value if v is
// nil.
//
//go:noinline
func appendValuePlace(all []place, part partSet, of int, name string, v *headerValue, open bool) []place {
	p := place{part: part, header: of, key: name, open: open}
	if v != nil {
		p.key += ":" + strconv.FormatBool(v.prefix) + v.text
	}
	p.insert = func(m *Matcher, list int32) {
		tables := &m.headers
		if part == partAttr {
			tables = &m.attrs
		}
		if t := tableOf(tables, name); v != nil {
			t.set(v.text, v.prefix, list)
		} else {
			t.present = list
		}
	}
	return appendPlace(all, p)
}

// valueTable.set maps a value, or a prefix of values, to the list.
func (t *valueTable) set(text string, prefix bool, list int32) {
	if prefix {
		t.prefixes.set(text, list)
		return
	}
	if t.exact == nil {
		t.exact = make(map[string]int32)
	}
	t.exact[text] = list
}

// tableOf returns the table of the header or attribute, and adds one if there is none.
func tableOf(tables *[]valueTable, name string) *valueTable {
	for i := range *tables {
		if t := &(*tables)[i]; t.name == name {
			return t
		}
	}
	*tables = append(*tables, valueTable{name: name})
	return &(*tables)[len(*tables)-1]
}
