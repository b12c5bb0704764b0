// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"strconv"
)

// place is an entry of the index under which a condition can be found. A condition that is to be found by one of its
// parts stands in all the places of that part.
type place struct {
	part   partSet
	header int    // partHeader, partAttr: which of the condition's headers or attributes; partClient: which field
	key    string // tells the places of one part apart
	open   bool   // what is found there must be compared in this part as well
	insert func(m *matcher, list int32)
}

// placeID names a place: conditions in the same one share a list.
type placeID struct {
	part partSet
	key  string
}

func (p *place) id() placeID { return placeID{p.part, p.key} }

// newMatcher builds the index over cs, which it keeps.
func newMatcher(cs []condition) *matcher {
	m := &matcher{conditions: cs, compare: make([]partSet, len(cs))}
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
	m.lay(lists)
	return m
}

// lay puts the lists into one array, so that what one request reads is close together.
func (m *matcher) lay(lists [][]int32) {
	for _, entries := range lists {
		m.starts = append(m.starts, int32(len(m.numbers)))
		m.numbers = append(m.numbers, slices.Compact(entries)...)
	}
	m.starts = append(m.starts, int32(len(m.numbers)))
}

// choosePlaces returns the places of that part of a condition which brings up the fewest other conditions; of equals the
// first. A header counts as a part of its own, and so does a field of the client.
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

// places lists the places in which the condition could stand, part by part, those first that cost least to look up.
func (c *condition) places() []place {
	var all []place
	if c.parts&partPath != 0 {
		for i := range c.patterns {
			all = append(all, c.patterns[i].place(c.everyReading))
		}
	}
	for _, h := range c.hosts {
		all = append(all, h.place())
	}
	for _, p := range c.prefixes {
		all = append(all, rangePlace(p))
	}
	if c.client != nil {
		all = c.client.appendPlaces(all)
	}
	for i := range c.headers {
		all = c.headers[i].appendPlaces(all, i, len(c.headers) > 1)
	}
	for i := range c.attrs {
		all = c.attrs[i].appendPlaces(all, i, len(c.attrs) > 1)
	}
	for _, method := range c.methods {
		all = append(all, place{part: partMethod, key: method, insert: func(m *matcher, list int32) {
			if m.methods == nil {
				m.methods = make(map[string]int32)
			}
			m.methods[method] = list
		}})
	}
	return all
}

func (p *pattern) place(everyReading bool) place {
	var key []byte
	for _, s := range p.segments {
		key = append(key, '/', byte('0'+s.kind))
		key = appendFolded(key, s.text)
	}
	open := everyReading || p.caseSensitive || p.slash != slashAny
	return place{part: partPath, key: string(key), open: open, insert: func(m *matcher, list int32) {
		m.paths.insert(p.segments, list)
	}}
}

func (h hostPattern) place() place {
	return place{part: partHost, key: h.name, insert: func(m *matcher, list int32) {
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
	return place{part: partIP, key: p.String(), insert: func(m *matcher, list int32) { m.ranges.set(p, list) }}
}

func (c *clientCondition) appendPlaces(all []place) []place {
	fields := 0
	for _, values := range c {
		fields += min(1, len(values))
	}
	for f, values := range c {
		for _, value := range values {
			all = append(all, place{part: partClient, header: f, key: strconv.Itoa(f) + value, open: fields > 1,
				insert: func(m *matcher, list int32) { m.clients.set(f, value, list) }})
		}
	}
	return all
}

func (h *headerCondition) appendPlaces(all []place, header int, open bool) []place {
	if len(h.values) == 0 {
		return append(all, valuePlace(partHeader, header, h.name, nil, open))
	}
	for i := range h.values {
		all = append(all, valuePlace(partHeader, header, h.name, &h.values[i], open))
	}
	return all
}

// valuePlace is the place of a value of a header or an attribute; of any value if it is nil.
func valuePlace(part partSet, of int, name string, v *headerValue, open bool) place {
	p := place{part: part, header: of, key: name, open: open}
	if v != nil {
		p.key += ":" + strconv.FormatBool(v.prefix) + v.text
	}
	p.insert = func(m *matcher, list int32) {
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
	return p
}

// set lets a value, or what values begin with, find the list.
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

// tableOf returns the table of the header or attribute, a new one if need be.
func tableOf(tables *[]valueTable, name string) *valueTable {
	for i := range *tables {
		if t := &(*tables)[i]; t.name == name {
			return t
		}
	}
	*tables = append(*tables, valueTable{name: name})
	return &(*tables)[len(*tables)-1]
}
