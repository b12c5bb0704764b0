// SPDX-License-Identifier: Apache-2.0

package refusals

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

const (
	shardCount   = 16
	shardEntries = 64 // few enough to be looked through one after the other, in eight cache lines
	// Entries is how many clients are remembered.
	Entries = shardCount * shardEntries
	// NameBytesMax is how much of a policy's name and a client's together is shown. What is longer is told apart all the
	// same, by length and hash.
	NameBytesMax = 512
	// HalfLifeDefault is after how long a refusal counts half.
	HalfLifeDefault = time.Hour
	// one is a refusal. Counts have 16 bits behind the point, so that halving them loses nothing that shows.
	one = 1 << 16
)

// Options of a sketch. The zero Options are good.
type Options struct {
	HalfLife time.Duration    // after which refusals count half; 0 means HalfLifeDefault
	Now      func() time.Time // nil means time.Now
}

// Sketch remembers who is refused most. Make one with [New]. Safe for concurrent use.
type Sketch struct {
	seed     maphash.Seed
	now      func() time.Time
	halfLife time.Duration
	shards   [shardCount]shard
}

type shard struct {
	mu     sync.Mutex
	used   int
	age    int64 // half-lives since the epoch, as of the counts
	hashes [shardEntries]uint64
	counts [shardEntries]uint64 // in parts of one
	overs  [shardEntries]uint64 // by how much a count may be too high
	names  [shardEntries]name
}

// name is the policy and the client, one behind the other.
type name struct {
	text                    []byte
	policyBytes, totalBytes int // totalBytes before text was cut
}

// Entry is a client that is refused often.
type Entry struct {
	Policy, Client string
	Refused        uint64 // at most so often, lately; a refusal of a half-life ago counts half
	Over           uint64 // by how much Refused may be too high
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

// Add counts one refusal of a client by a policy. The texts belong to the caller.
func (s *Sketch) Add(policy, client string) {
	// The shard goes by high bits, which the hash of the whole name mixes well.
	h := maphash.String(s.seed, client) ^ maphash.String(s.seed, policy)*0x9e3779b97f4a7c15
	age := s.age()
	at := &s.shards[h>>60]
	at.mu.Lock()
	at.decay(age)
	at.add(h, policy, client)
	at.mu.Unlock()
}

func (s *Sketch) age() int64 { return s.now().UnixNano() / int64(s.halfLife) }

// decay halves what is older. Rounding goes up for counts and down for what is certain, so that the bound holds. A clock
// that goes back makes nothing younger.
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

func (s *shard) add(h uint64, policy, client string) {
	least := 0
	for i := range s.used {
		if s.hashes[i] == h && s.names[i].is(policy, client) {
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
	// The newcomer may be one that was here before: it takes over the count of the one that it replaces.
	s.overs[least] = s.counts[least]
	s.counts[least] += one
	s.hashes[least] = h
	s.names[least].set(policy, client)
}

func (n *name) is(policy, client string) bool {
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

// Top returns the n clients that are refused most, the most refused first. It is for people: it takes some 100 µs and
// allocates.
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
		return cmp.Or(cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Over, b.Over), cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Client, b.Client))
	})
	return entries[:min(max(n, 0), len(entries))]
}

// appendTo appends the shard's clients that were refused at least once, as counts are now.
func (s *shard) appendTo(entries []Entry) []Entry {
	for i := range s.used {
		if s.counts[i] < one {
			continue
		}
		n := &s.names[i]
		refused, certain := (s.counts[i]+one-1)/one, (s.counts[i]-s.overs[i])/one
		entries = append(entries, Entry{Policy: string(n.text[:n.policyBytes]), Client: string(n.text[n.policyBytes:]),
			Refused: refused, Over: refused - certain})
	}
	return entries
}
