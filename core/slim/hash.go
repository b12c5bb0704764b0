// SPDX-License-Identifier: Apache-2.0

package slim

// FNVPrime is the prime of the 64-bit FNV hash.
const FNVPrime = 1099511628211

// FNV returns the 64-bit FNV-1a hash. Use it only where an attacker gains nothing from collisions.
// Package hash/fnv implements all sizes of the hash behind an interface, which makes it larger.
// Price: 4.7 KB.
func FNV[T string | []byte](text T) uint64 {
	hash := uint64(14695981039346656037)
	for i := 0; i < len(text); i++ {
		hash = (hash ^ uint64(text[i])) * FNVPrime
	}
	return hash
}
