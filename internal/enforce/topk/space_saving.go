// SPDX-License-Identifier: Apache-2.0

package topk

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

const (
	shardCount   = 16
	shardEntries = 64 // few enough for a linear search of eight cache lines
	// Entries is the number of clients that are kept.
	Entries = shardCount * shardEntries
	// NameBytesMax is the number of bytes that are kept of a policy's and a client's name together.
	// Longer names are still distinguished, by length and hash.
	NameBytesMax = 512
	// HalfLifeDefault is the time after which a denial counts half.
	HalfLifeDefault = time.Hour
	// one is the count of one denial. Counts have 16 fractional bits, so that halving does not lose
	// visible precision.
	one = 1 << 16
)

// Options configures a sketch. The zero Options are the defaults.
type Options struct {
	HalfLife time.Duration    // the time after which a denial counts half; 0 means HalfLifeDefault
	Now      func() time.Time // nil means time.Now
}

// Sketch keeps the clients that are denied most. Create one with [New]. A Sketch is safe for
// concurrent use.
type Sketch struct {
	seed     maphash.Seed
	now      func() time.Time
	halfLife time.Duration
	shards   [shardCount]shard
}

type shard struct {
	mu     sync.Mutex
	used   int
	age    int64 // the time for which the counts are valid, in half-lives since the epoch
	hashes [shardEntries]uint64
	counts [shardEntries]uint64 // in units of 1/one
	overs  [shardEntries]uint64 // the amount by which each count can be too high
	names  [shardEntries]name
}

// name is the policy and the client, concatenated.
type name struct {
	text                    []byte
	policyBytes, totalBytes int // totalBytes is the length before text was cut
}

// Entry is a client that is denied often.
type Entry struct {
	Policy, Client string
	Denied         uint64 // an upper bound of recent denials; a denial from one half-life ago counts half
	Over           uint64 // the amount by which Denied can be too high
}

// New returns an empty sketch. A negative half-life means the default.
func New(o Options) *Sketch {
	s := &Sketch{seed: maphash.MakeSeed(), now: o.Now, halfLife: o.HalfLife}
	if s.now == nil {
		s.now = time.Now
	}
	if s.halfLife <= 0 {
		s.halfLife = HalfLifeDefault
	}
	return s
}

// Add counts one denial of a client by a policy. The texts are not retained.
func (s *Sketch) Add(policy, client string) {
	// The high bits of the hash select the shard, because they depend on the whole name.
	h := maphash.String(s.seed, client) ^ maphash.String(s.seed, policy)*0x9e3779b97f4a7c15
	age := s.age()
	at := &s.shards[h>>60]
	at.mu.Lock()
	at.decay(age)
	at.countDenial(h, policy, client)
	at.mu.Unlock()
}

func (s *Sketch) age() int64 { return s.now().UnixNano() / int64(s.halfLife) }

// shard.decay halves the counts for the half-lives that have passed. Counts are rounded up, and
// guaranteed minimums are rounded down, so the bound remains correct. A clock that goes back has no
// effect.
func (s *shard) decay(age int64) {
	if age <= s.age {
		return
	}
	halvings := uint64(min(age-s.age, 63))
	s.age = age
	for i := range s.used {
		certain := (s.counts[i] - s.overs[i]) >> halvings
		s.counts[i] = (s.counts[i] + 1<<halvings - 1) >> halvings
		s.overs[i] = s.counts[i] - certain
	}
}

func (s *shard) countDenial(h uint64, policy, client string) {
	least := 0
	for i := range s.used {
		if s.hashes[i] == h && s.names[i].equals(policy, client) {
			s.counts[i] += one
			return
		}
		if s.counts[i] < s.counts[least] {
			least = i
		}
	}
	if s.used < shardEntries {
		least = s.used
		s.used++
	}
	// The new client might have been counted here before, so it takes over the count of the entry
	// that it replaces, as a possible error.
	s.overs[least] = s.counts[least]
	s.counts[least] += one
	s.hashes[least] = h
	s.names[least].set(policy, client)
}

func (n *name) equals(policy, client string) bool {
	if n.totalBytes != len(policy)+len(client) || n.policyBytes != min(len(policy), NameBytesMax) {
		return false
	}
	client = client[:min(len(client), NameBytesMax-n.policyBytes)]
	return string(n.text[:n.policyBytes]) == policy[:n.policyBytes] && string(n.text[n.policyBytes:]) == client
}

func (n *name) set(policy, client string) {
	if n.text == nil {
		n.text = make([]byte, 0, NameBytesMax)
	}
	n.totalBytes = len(policy) + len(client)
	n.policyBytes = min(len(policy), NameBytesMax)
	n.text = append(n.text[:0], policy[:n.policyBytes]...)
	n.text = append(n.text, client[:min(len(client), NameBytesMax-n.policyBytes)]...)
}

// Top returns the n clients that are denied most, the most denied first. Top takes about 100 µs
// and allocates, so it is not for the request path.
func (s *Sketch) Top(n int) []Entry {
	age := s.age()
	entries := []Entry{}
	for i := range s.shards {
		at := &s.shards[i]
		at.mu.Lock()
		at.decay(age)
		entries = at.appendTo(entries)
		at.mu.Unlock()
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Over, b.Over), cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Client, b.Client))
	})
	return entries[:min(max(n, 0), len(entries))]
}

// appendTo appends the shard's clients with at least one denial, as counted now.
func (s *shard) appendTo(entries []Entry) []Entry {
	for i := range s.used {
		if s.counts[i] < one {
			continue
		}
		n := &s.names[i]
		denied, certain := (s.counts[i]+one-1)/one, (s.counts[i]-s.overs[i])/one
		entries = append(entries, Entry{Policy: string(n.text[:n.policyBytes]), Client: string(n.text[n.policyBytes:]),
			Denied: denied, Over: denied - certain})
	}
	return entries
}
