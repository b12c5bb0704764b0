// SPDX-License-Identifier: Apache-2.0

// Package meter counts what each client used, for billing.
//
// # Promise
//
// A [Meter] adds up requests and units, exactly. Each sum is taken once: by [Meter.Take], which
// begins new sums. A meter has at most [KeysMax] sums of clients that have a record, and as many of
// other clients, so that made-up names take no room from clients with a record. The counts of
// further clients are added to one sum without a name for each rule, so that the total stays exact.
//
// # Price
//
// Counting takes about 60 ns, and no allocation for a client that was counted since the last Take.
// A sum takes about 200 bytes. A meter that is off counts nothing, and costs one load. A meter also
// counts how long decisions took, in at most [LatencyKeysMax] histograms, which can be added up.
// And it notes which API keys were used, at most [UsedKeysMax] of them.
//
// # When not to use it
//
// The sums are in memory: a process that is killed loses those since the last Take.
package meter

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

// KeysMax bounds the number of sums of named clients between two calls of Take. Clients with a
// record and other clients are bounded separately.
const KeysMax = 1 << 16

const shardCount = 16

// Key identifies a sum. Policy and Rule must stay valid; the other texts are copied.
type Key struct {
	Policy, Rule string
	Tier         string
	Kind, Client string
	// Known says that the client has a record in the directory. Known is not part of the identity.
	Known bool
}

// Sum holds the counts of one key.
type Sum struct {
	Admitted, Denied uint64 // requests
	// Units are those of admitted requests. The number is negative if more units were refunded than
	// charged since the last Take.
	Units int64
}

func (s *Sum) add(o Sum) {
	s.Admitted += o.Admitted
	s.Denied += o.Denied
	s.Units += o.Units
}

// Row is a sum with its key.
type Row struct {
	Key
	Sum
}

// Meter counts. Create one with [New]. A nil *Meter is off. A Meter is safe for concurrent use.
type Meter struct {
	latencies latencies
	keys      usedKeys
	users     atomic.Int32 // the number of calls of Use whose done was not called
	seed      maphash.Seed
	named     [2]atomic.Int64 // sums of clients by name: without and with a record
	shards    [shardCount]struct {
		mu   sync.Mutex
		sums map[Key]*entry
	}
}

// entry is the sum of a named client. The field named known reports whether the client had a record
// when the sum was begun.
type entry struct {
	Sum
	known bool
}

// room returns the number of sums of named clients that have a record, or of those that have none.
func (m *Meter) room(known bool) *atomic.Int64 {
	if known {
		return &m.named[1]
	}
	return &m.named[0]
}

// New returns a meter that is off.
func New() *Meter { return &Meter{seed: maphash.MakeSeed()} }

// Use turns the meter on. The meter is turned off when done has been called for every Use. The
// counts are kept.
func (m *Meter) Use() (done func()) {
	m.users.Add(1)
	return sync.OnceFunc(func() { m.users.Add(-1) })
}

// On reports whether the meter counts.
func (m *Meter) On() bool { return m != nil && m.users.Load() > 0 }

// Count adds to the sum of a key.
func (m *Meter) Count(k *Key, add Sum) {
	if m.On() {
		m.addSum(k, add)
	}
}

func (m *Meter) addSum(k *Key, add Sum) {
	s := &m.shards[maphash.String(m.seed, k.Client)%shardCount]
	own := *k
	own.Known = false
	s.mu.Lock()
	if sum := s.sums[own]; sum != nil {
		sum.add(add)
		s.mu.Unlock()
		return
	}
	if room := m.room(k.Known); k.Client != "" && room.Add(1) > KeysMax {
		room.Add(-1)
		s.mu.Unlock()
		m.addSum(&Key{Policy: k.Policy, Rule: k.Rule}, add)
		return
	}
	if s.sums == nil {
		s.sums = make(map[Key]*entry)
	}
	own.Tier, own.Kind, own.Client = strings.Clone(k.Tier), strings.Clone(k.Kind), strings.Clone(k.Client)
	s.sums[own] = &entry{add, k.Known}
	s.mu.Unlock()
}

// Take returns all sums, in no order, and begins new ones.
func (m *Meter) Take() (rows []Row) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		sums := s.sums
		s.sums = nil
		s.mu.Unlock()
		var named [2]int64
		for k, sum := range sums {
			k.Known = sum.known
			rows = append(rows, Row{k, sum.Sum})
			switch {
			case k.Client == "":
			case k.Known:
				named[1]++
			default:
				named[0]++
			}
		}
		for i := range named {
			m.named[i].Add(-named[i])
		}
	}
	return rows
}

// Return adds rows of Take back to the meter, if they could not be stored elsewhere.
func (m *Meter) Return(rows []Row) {
	for i := range rows {
		m.addSum(&rows[i].Key, rows[i].Sum)
	}
}
