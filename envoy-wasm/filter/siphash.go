// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"hash/maphash"
	"math/bits"
)

// hashKey is the secret of a keyed hash. Without the key, a client cannot find two counters with
// the same hash.
type hashKey [2]uint64

// newHashKey returns a random key. The seed of a maphash is random, and crypto/rand would make the
// filter larger.
//
//go:noinline
func newHashKey() (k hashKey) {
	for i := range k {
		k[i] = maphash.String(maphash.MakeSeed(), "")
	}
	return k
}

// hashKey.sum returns the SipHash-1-3 of data. The package hash/maphash cannot be used, because
// every worker has a different seed.
func (k hashKey) sum(data []byte) uint64 {
	s := sipState{k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d, k[0] ^ 0x6c7967656e657261, k[1] ^ 0x7465646279746573}
	last := uint64(len(data)) << 56
	for ; len(data) >= 8; data = data[8:] {
		s.add(number(data))
	}
	for i, b := range data {
		last |= uint64(b) << (8 * i)
	}
	s.add(last)
	s[2] ^= 0xff
	for range 3 {
		s.round()
	}
	return s[0] ^ s[1] ^ s[2] ^ s[3]
}

type sipState [4]uint64

//go:noinline
func (s *sipState) add(word uint64) {
	s[3] ^= word
	s.round()
	s[0] ^= word
}

//go:noinline
func (s *sipState) round() {
	s[0] += s[1]
	s[1] = bits.RotateLeft64(s[1], 13) ^ s[0]
	s[0] = bits.RotateLeft64(s[0], 32)
	s[2] += s[3]
	s[3] = bits.RotateLeft64(s[3], 16) ^ s[2]
	s[0] += s[3]
	s[3] = bits.RotateLeft64(s[3], 21) ^ s[0]
	s[2] += s[1]
	s[1] = bits.RotateLeft64(s[1], 17) ^ s[2]
	s[2] = bits.RotateLeft64(s[2], 32)
}
