// SPDX-License-Identifier: Apache-2.0

package events

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// EventsMax is the maximum number of events in a second.
const EventsMax = 1000

const (
	shardCount = 16
	// pageEntries is twice the mean number of entries of a shard. A hash with a secret seed spreads
	// EventsMax entries over the shards, so a shard with more entries than pageEntries would be 8
	// standard deviations above the mean.
	pageEntries = 128
	pageSlots   = 256 // a power of two
)

// Key identifies equal decisions. Policy, Version, Rule and Decision must stay valid; Kind and
// Client are copied.
type Key struct {
	Policy, Version string
	Rule            string
	Decision        string
	Kind, Client    string // the name of the client
}

// Details are the properties of an event besides its key. The details are those of the first of the
// equal decisions. The texts are copied.
type Details struct {
	Settings policy.Events
	Denied   bool
	Status   int
	Limit    *counter.Limit
	Address  netip.Addr
	Tier     string
	Method   string
	Path     string
	// RetryAfter is how long the client should wait, and Latency how long the decision took; 0 if
	// it is unknown.
	RetryAfter, Latency counter.Micros
}

// table collects the decisions that are made within one second.
type table struct {
	seed   maphash.Seed
	used   atomic.Int64 // the number of entries in all shards
	shards [shardCount]shard
}

type shard struct {
	mu         sync.Mutex
	now, spare *page
}

// page has the entries of one shard in one second.
type page struct {
	used    int
	slots   [pageSlots]uint8 // by hash: the index of an entry plus one, or 0
	hashes  [pageEntries]uint64
	entries [pageEntries]entry
}

// entry is the event of equal decisions. The entry's text is the concatenation of the client's kind
// and name, the tier, the method and the path.
type entry struct {
	policy, version, rule, decision string

	text  []byte
	ends  [5]uint16 // the ends of the parts of text
	whole int       // length of the client's name before it was cut

	settings policy.Events
	denied   bool
	status   int
	limit    *counter.Limit
	address  netip.Addr
	at       time.Time // the time of the first decision
	retry    counter.Micros
	latency  counter.Micros
	count    uint64
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].now, t.shards[i].spare = new(page), new(page)
	}
	return t
}

// table.hash returns the hash of a key. The seed protects only the client's name, because only that
// part is chosen by clients. For the other parts, lengths and a few bytes suffice, because keys
// with the same hash are compared later. Every part affects the hash, so that the keys of one
// client spread over the shards.
func (t *table) hash(k *Key) uint64 {
	rest := uint64(len(k.Decision))<<24 | uint64(len(k.Kind))<<32
	if n := len(k.Rule); n > 0 {
		rest |= uint64(n&0xff)<<16 | uint64(k.Rule[0])<<8 | uint64(k.Rule[n-1])
	}
	if n := len(k.Version); n > 0 {
		rest |= uint64(k.Version[n-1]) << 40
	}
	return maphash.String(t.seed, k.Client) ^ rest*0x9e3779b97f4a7c15
}

// table.count adds n decisions to the event of equal decisions, and reports whether there is one.
// If there is none, and no room for a new one, the result named full is true.
func (t *table) count(k *Key, n uint64) (counted, full bool) {
	h := t.hash(k)
	s := &t.shards[h>>60]
	s.mu.Lock()
	if e, _ := s.now.find(h, k); e != nil {
		e.count += n
		s.mu.Unlock()
		return true, false
	}
	full = s.now.used == pageEntries
	s.mu.Unlock()
	return false, full || t.used.Load() >= EventsMax
}

// addEvent adds n decisions to the event of equal decisions, or makes a new event. It reports false
// if there is no room.
func (t *table) addEvent(k *Key, d *Details, n uint64, at time.Time) bool {
	h := t.hash(k)
	s := &t.shards[h>>60]
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.now
	e, slot := p.find(h, k)
	if e != nil {
		e.count += n
		return true
	}
	if p.used == pageEntries || t.used.Add(1) > EventsMax {
		if p.used < pageEntries {
			t.used.Add(-1)
		}
		return false
	}
	e = &p.entries[p.used]
	p.hashes[p.used] = h
	p.used++
	p.slots[slot] = uint8(p.used)
	e.fill(k, d, n, at)
	return true
}

// page.find returns the entry of a key, or nil and a free slot.
func (p *page) find(h uint64, k *Key) (e *entry, slot int) {
	for slot = int(h % pageSlots); p.slots[slot] != 0; slot = (slot + 1) % pageSlots {
		i := int(p.slots[slot]) - 1
		if p.hashes[i] == h && p.entries[i].hasKey(k) {
			return &p.entries[i], slot
		}
	}
	return nil, slot
}

// hasKey reports whether the entry belongs to a key. Names that were cut are distinguished by their
// length and the hash.
func (e *entry) hasKey(k *Key) bool {
	name := k.Client[:min(len(k.Client), partBytesMax)]
	return e.whole == len(k.Client) && e.decision == k.Decision && e.rule == k.Rule && e.version == k.Version &&
		e.policy == k.Policy && string(e.text[e.ends[0]:e.ends[1]]) == name &&
		string(e.text[:e.ends[0]]) == k.Kind[:min(len(k.Kind), partBytesMax)]
}

func (e *entry) fill(k *Key, d *Details, n uint64, at time.Time) {
	text := e.text[:0]
	for i, part := range [...]string{k.Kind, k.Client, d.Tier, d.Method, d.Path} {
		text = append(text, part[:min(len(part), partBytesMax)]...)
		e.ends[i] = uint16(len(text))
	}
	*e = entry{policy: k.Policy, version: k.Version, rule: k.Rule, decision: k.Decision, text: text, ends: e.ends,
		whole: len(k.Client), settings: d.Settings, denied: d.Denied, status: d.Status, limit: d.Limit, address: d.Address,
		at: at, retry: d.RetryAfter, latency: d.Latency, count: n}
}

// table.take returns the events of the second that ends, and begins a new second.
func (t *table) take(node string) (all []Event) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.now, s.spare = s.spare, s.now
		s.mu.Unlock()
		ended := s.spare // no other goroutine uses the page now
		t.used.Add(-int64(ended.used))
		for j := range ended.used {
			all = append(all, ended.entries[j].event(node))
		}
		ended.used, ended.slots = 0, [pageSlots]uint8{}
	}
	return all
}

// entry.event returns the event in the form that its policy selects.
func (e *entry) event(node string) Event {
	text := string(e.text)
	part := func(i int) string { return text[e.ends[i-1]:e.ends[i]] }
	shown := Event{Time: e.at, Kind: KindAdmitted, Policy: e.policy, Version: e.version, Rule: e.rule, Decision: e.decision,
		Status: e.status, Client: ShownClient(text[:e.ends[0]], part(1), e.settings.Address), Tier: part(2),
		IP: ShownAddress(e.address, e.settings.Address), Method: part(3), Path: part(4), Node: node, Count: e.count,
		RetryAfterMS: int64((e.retry + counter.Millisecond - 1) / counter.Millisecond), LatencyUS: int64(e.latency)}
	if e.limit != nil {
		shown.Limit = e.limit.String()
	}
	if e.whole > partBytesMax {
		shown.Client += ellipsis
	}
	if e.denied {
		shown.Kind = KindDenied
	} else {
		shown.Share = float64(e.settings.AdmittedPPM) / policy.EventsPPMMax
	}
	return shown
}
