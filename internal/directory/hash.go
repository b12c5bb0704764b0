// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/penstock/penstock/core/policy"
)

// hashKey is the secret key of a hash of names. Because of this secret, clients cannot choose names
// with equal hashes. A hashKey hashes a name in about half the time of hash/maphash, which calls
// the runtime for each text.
type hashKey struct{ id, kind, word uint64 }

func newHashKey() hashKey { return hashKey{rand.Uint64(), rand.Uint64(), rand.Uint64()} }

// hashOf returns the hash of a name, which is never 0.
func (k *hashKey) hashOf(name policy.ClientName) uint64 {
	return k.sum(name.ID, k.id) ^ bits.RotateLeft64(k.sum(name.Kind, k.kind), 1) | 1<<63
}

// hashKey.sum returns the hash of a text. It multiplies the words of the text as wyhash does.
func (k *hashKey) sum(text string, h uint64) uint64 {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	// without this, a length could have the same effect as a difference in the last byte
	h ^= uint64(len(b)) * 0x9E3779B97F4A7C15
	for ; len(b) > 16; b = b[16:] {
		h = fold(binary.LittleEndian.Uint64(b)^k.word, binary.LittleEndian.Uint64(b[8:])^h)
	}
	var low, high uint64
	switch n := len(b); {
	case n >= 8:
		low, high = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[n-8:])
	case n >= 4:
		low, high = uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[n-4:]))
	case n > 0:
		low = uint64(b[0])<<16 | uint64(b[n/2])<<8 | uint64(b[n-1])
	}
	return fold(low^k.word, high^h)
}

// fold returns the exclusive or of the two halves of a product.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}
