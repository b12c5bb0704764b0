// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"encoding/binary"
	"math/bits"
)

// An index finds records by the hash of their key, by extendible hashing. A directory maps the
// leading bits of the hash to segments. A full segment is split in two, and the other segments do
// not change. So growth moves only the records of one segment, however large the store is. The bits
// of a hash are used like this:
//
//	63 … 56  the shard          (see Store)
//	55 …     the directory, up to depthMax bits
//	31 …     the group in the segment
//	19 … 10  the overflow number (see overflow)
//	 6 …  0  the tag
//
// A segment is an open-addressing table of groups of eight slots. The one-byte tags of a group are
// compared in one step.
type index struct {
	directory []*segment // the segments: 1 << depth of them; adjacent ones may be the same
	depth     uint8
}

type segment struct {
	groups [segmentGroups]group
	live   uint16 // the number of slots that hold a record
	used   uint16 // the number of slots that hold or held a record, at which a search must not stop
	depth  uint8  // the number of leading bits that all hashes in the segment share
}

type group struct {
	tags [groupSlots]byte
	refs [groupSlots]ref
}

const (
	groupSlots    = 8
	segmentGroups = 31 // 1,248 bytes, which the allocator rounds up to 1,280
	segmentSlots  = segmentGroups * groupSlots
	segmentFull   = segmentSlots * 7 / 8
	segmentBytes  = 1280

	tagEmpty = 0 // the slot was never used, so a search ends here
	tagGone  = 1 // the slot was used before, so a search continues
	tagLive  = 0x80

	lows  = 0x0101010101010101
	highs = 0x8080808080808080

	directoryShift = 56
	// depthMax bounds the directory (2 MiB per shard). With a seeded hash the largest store needs
	// about 14 bits. At the bound there is no room for another record, and its client gets an
	// overflow counter.
	depthMax = 18
)

// group.word returns the tags of the group as one number.
func (g *group) word() uint64 { return binary.LittleEndian.Uint64(g.tags[:]) }

// matchTag returns a word in which the high bit of a byte marks a tag equal to tag. The word can
// also mark a few unequal tags.
func matchTag(tags uint64, tag byte) uint64 {
	x := tags ^ lows*uint64(tag)
	return (x - lows) & ^x & highs
}

// hasEmpty reports whether a search ends in the group with these tags.
func hasEmpty(tags uint64) bool { return (tags-lows)&^tags&highs != 0 }

// tagOf returns the tag of a record with this hash.
func tagOf(hash uint64) byte { return tagLive | byte(hash)&0x7f }

// homeGroup returns the group in which the search for a hash begins.
func homeGroup(hash uint64) int { return int(uint64(uint32(hash)) * segmentGroups >> 32) }

// index.at returns the segment in which keys with the hash are stored.
func (x *index) at(hash uint64) *segment {
	return x.directory[hash<<(64-directoryShift)>>(64-x.depth)]
}

// next returns the group that is searched after g.
func next(g int) int {
	if g++; g == segmentGroups {
		return 0
	}
	return g
}

// index.find returns the record with the key.
func (x *index) find(a *arena, hash uint64, key []byte) (ref, bool) {
	s, tag := x.at(hash), tagOf(hash)
	for g, n := homeGroup(hash), 0; n < segmentGroups; g, n = next(g), n+1 {
		grp := &s.groups[g]
		tags := grp.word()
		for m := matchTag(tags, tag); m != 0; m &= m - 1 {
			i := bits.TrailingZeros64(m) / 8
			if grp.tags[i] == tag && a.hasKey(grp.refs[i], key) {
				return grp.refs[i], true
			}
		}
		if hasEmpty(tags) {
			break
		}
	}
	return 0, false
}

// segment.put adds a record. The caller must have called makeRoom before.
func (s *segment) put(hash uint64, r ref) {
	for g := homeGroup(hash); ; g = next(g) {
		grp := &s.groups[g]
		if room := ^grp.word() & highs; room != 0 {
			i := bits.TrailingZeros64(room) / 8
			if grp.tags[i] == tagEmpty {
				s.used++
			}
			s.live++
			grp.tags[i], grp.refs[i] = tagOf(hash), r
			return
		}
	}
}

// index.remove removes a record.
func (x *index) remove(hash uint64, r ref) {
	s, tag := x.at(hash), tagOf(hash)
	for g, n := homeGroup(hash), 0; n < segmentGroups; g, n = next(g), n+1 {
		grp := &s.groups[g]
		for i := range grp.tags {
			if grp.tags[i] != tag || grp.refs[i] != r {
				continue
			}
			s.live--
			// The group has an unused slot, so every search ends in this group.
			if hasEmpty(grp.word()) {
				grp.tags[i] = tagEmpty
				s.used--
			} else {
				grp.tags[i] = tagGone
			}
			return
		}
	}
}

// table.makeRoom makes room for one more record with the hash. If the segment of the hash is full,
// makeRoom rebuilds or splits the segment. It fails if splitting does not separate the hashes.
func (t *table) makeRoom(hash uint64) bool {
	for {
		s := t.at(hash)
		switch {
		case s.used < segmentFull:
			return true
		case s.live < segmentFull*3/4:
			t.rebuild(s)
		case s.depth == depthMax:
			return false
		default:
			t.split(s, hash)
		}
	}
}

// table.rebuild frees the slots of removed records, so that searches need not pass them.
func (t *table) rebuild(s *segment) {
	var held [segmentSlots]ref
	n := s.collect(&held)
	*s = segment{depth: s.depth}
	for _, r := range held[:n] {
		s.put(t.hash(t.key(r)), r)
	}
}

// table.split divides the records of segment s between s and a new segment, by the next bit of
// their hashes. The argument hash is any hash of segment s.
func (t *table) split(s *segment, hash uint64) {
	if s.depth == t.depth {
		t.double()
	}
	bit := uint64(1) << (directoryShift - 1 - s.depth)
	var held [segmentSlots]ref
	n := s.collect(&held)
	*s = segment{depth: s.depth + 1}
	upper := &segment{depth: s.depth}
	t.bytes += segmentBytes
	for _, r := range held[:n] {
		if h := t.hash(t.key(r)); h&bit == 0 {
			s.put(h, r)
		} else {
			upper.put(h, r)
		}
	}
	// The directory entries of the segment are adjacent. The second half of these entries now
	// refers to the upper segment.
	width := 1 << (t.depth - s.depth + 1)
	first := int(hash<<(64-directoryShift)>>(64-t.depth)) &^ (width - 1)
	for i := first + width/2; i < first+width; i++ {
		t.directory[i] = upper
	}
}

// segment.collect copies the segment's records and returns their number.
func (s *segment) collect(held *[segmentSlots]ref) (n int) {
	for g := range s.groups {
		for i, tag := range s.groups[g].tags {
			if tag&tagLive != 0 {
				held[n] = s.groups[g].refs[i]
				n++
			}
		}
	}
	return n
}

// index.double doubles the length of the directory.
func (x *index) double() {
	directory := make([]*segment, 2*len(x.directory))
	for i := range directory {
		directory[i] = x.directory[i/2]
	}
	x.directory = directory
	x.depth++
}
