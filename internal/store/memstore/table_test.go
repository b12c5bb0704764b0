// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
)

func openTable() *table {
	t := &table{}
	t.init(maphash.MakeSeed())
	return t
}

// checkConsistent fails the test unless directory, segments, records and pages agree.
func (t *table) checkConsistent(tb testing.TB) {
	tb.Helper()
	entries, held := map[*segment]int{}, 0
	for _, s := range t.directory {
		entries[s]++
	}
	for s, n := range entries {
		live, used := 0, 0
		for g := range s.groups {
			for i, tag := range s.groups[g].tags {
				if tag != tagEmpty {
					used++
				}
				if tag&tagLive == 0 {
					continue
				}
				live++
				key := t.key(s.groups[g].refs[i])
				if r, ok := t.find(t.hash(key), key); !ok || r != s.groups[g].refs[i] {
					tb.Fatalf("key %q is in a segment and not found", key)
				}
			}
		}
		if n != 1<<(t.depth-s.depth) || live != int(s.live) || used != int(s.used) {
			tb.Fatalf("a segment of depth %d has %d entries of a directory of depth %d, %d live of %d, %d used of %d",
				s.depth, n, t.depth, s.live, live, s.used, used)
		}
		held += live
	}
	inPages := 0
	for i := range t.pages {
		inPages += int(t.pages[i].live)
	}
	if h := t.hand; int(h.page) < len(t.pages) && t.pages[h.page].size > 0 && h.offset%uint32(t.pages[h.page].size) != 0 {
		tb.Fatalf("the hand is at %+v, in a page of records of %d bytes", h, t.pages[h.page].size)
	}
	if held != t.held || inPages != t.held {
		tb.Fatalf("the table holds %d, its segments %d, its pages %d", t.held, held, inPages)
	}
}

// TestTableAgreesWithAMap: under random insertions and removals of keys of all lengths, a table has
// the same contents as a map.
func TestTableAgreesWithAMap(t *testing.T) {
	masks := map[string]uint64{"hash": math.MaxUint64, "few hashes": 0x3f << 50, "few groups": 0xff<<48 | 0x7f}
	for name, mask := range masks {
		t.Run(name, func(t *testing.T) {
			rng, tab, want := random(t), openTable(), map[string]counter.Micros{}
			tab.mask = mask
			steps := racescale.Fewer(60_000)
			for step := range steps {
				key := []byte(fmt.Sprint("key", rng.IntN(4000)))
				key = append(key, strings.Repeat("x", int(key[len(key)-1]-'0')*(int(key[3]-'0')*40))...)
				hash := tab.hash(key)
				r, found := tab.find(hash, key)
				value, wanted := want[string(key)]
				if found != wanted || found && tab.freshAt(r) != value {
					t.Fatalf("step %d: %.20q: found %t, want %t", step, key, found, wanted)
				}
				grow := step%(steps/3) < steps/5 // the test alternates between phases of growth and of decline
				switch {
				case !found && (grow || rng.IntN(4) == 0):
					r, ok := tab.insert(hash, key)
					if !ok {
						t.Fatalf("step %d: no room for %.20q", step, key)
					}
					value = counter.Micros(rng.Int64())
					tab.setState(r, &counter.State{At: 1}, 0, value, 0)
					want[string(key)] = value
				case found && (!grow || rng.IntN(4) == 0):
					tab.remove(hash, r)
					delete(want, string(key))
				}
				if step%3000 == 0 {
					tab.checkConsistent(t)
				}
			}
			if tab.checkConsistent(t); tab.held != len(want) {
				t.Errorf("%d held, want %d", tab.held, len(want))
			}
		})
	}
}

// TestGrowthSplitsOneSegmentAtATime: growing touches one segment at a time, so the longest pause is
// the split of a full segment.
func TestGrowthSplitsOneSegmentAtATime(t *testing.T) {
	tab, l := openTable(), limittest.New(t, "1/1h")
	for i := range 50_000 {
		before := map[*segment]segment{}
		if i%500 == 0 {
			for _, s := range tab.directory {
				before[s] = *s
			}
		}
		key := key36(nil, i, l)
		if _, ok := tab.insert(tab.hash(key), key); !ok {
			t.Fatal("no room")
		}
		changed := 0
		for s, old := range before {
			if *s != old {
				changed++
			}
		}
		if changed > 1 {
			t.Fatalf("insertion %d changed %d segments", i, changed)
		}
	}
	tab.checkConsistent(t)
}

// TestKeysThatAllCollide: splitting cannot separate equal hashes. Insertion then fails instead of
// splitting forever.
func TestKeysThatAllCollide(t *testing.T) {
	tab := openTable()
	tab.mask = 0
	for i := range segmentFull + 50 {
		key := []byte(fmt.Sprint("key", i))
		_, ok := tab.insert(tab.hash(key), key)
		if want := i < segmentFull; ok != want {
			t.Fatalf("insertion %d: %t, want %t", i, ok, want)
		}
	}
	for i := range segmentFull {
		key := []byte(fmt.Sprint("key", i))
		r, ok := tab.find(0, key)
		if !ok || string(tab.key(r)) != string(key) {
			t.Fatalf("%q is not found", key)
		}
	}
}

// TestPagesAreReusedForKeysOfAnyLength: clients that keep changing the length of their keys do not
// make the store grow.
func TestPagesAreReusedForKeysOfAnyLength(t *testing.T) {
	tab := openTable()
	most := 0
	for round := range 40 {
		pad := strings.Repeat("x", round*25)
		var keys [][]byte
		for i := range 2000 {
			keys = append(keys, []byte(fmt.Sprintf("%s%04d", pad, i)))
			if _, ok := tab.insert(tab.hash(keys[i]), keys[i]); !ok {
				t.Fatal("no room")
			}
		}
		open := 0
		for _, memory := range tab.data {
			if memory != nil {
				open++
			}
		}
		_, size := class(len(keys[0]))
		most = (2000*int(size) + pageBytes - 1) / (pageBytes / int(size) * int(size))
		if open > most+classCount {
			t.Fatalf("round %d: %d pages open, want at most %d and one for each length", round, open, most)
		}
		for _, key := range keys {
			r, _ := tab.find(tab.hash(key), key)
			tab.remove(tab.hash(key), r)
		}
	}
	tab.checkConsistent(t)
}

func TestRecordsOfEveryLengthFitTheirClass(t *testing.T) {
	for n := range KeyMax + overflowSuffix {
		c, size := class(n)
		if c < 0 || c >= classCount || int(size) < keyOffset+n || size%8 != 0 || int(size) > pageBytes {
			t.Fatalf("a key of %d bytes: class %d of %d bytes", n, c, size)
		}
	}
}
