// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package usage

import "sync/atomic"

// A compressed body is kept until its end, which a client can delay. All taps together keep
// allBytesMax bytes, besides the first freeBytes of each. Most bodies are not longer, so a client
// that fills the rest does not affect them.
const (
	allBytesMax = 32 << 20
	freeBytes   = 64 << 10
)

// allBytes are the bytes that all taps keep beyond freeBytes each.
var allBytes atomic.Int64

// keptShare is the part of allBytes that one tap has.
type keptShare int64

// The method grow counts the bytes of a compressed body, and reports whether there is room for
// them.
func (k *keptShare) grow(bytes int) bool {
	more := int64(bytes-freeBytes) - int64(*k)
	if more <= 0 {
		return true
	}
	*k += keptShare(more)
	return allBytes.Add(more) <= allBytesMax
}

// The method end returns the part to allBytes.
func (k *keptShare) end() {
	allBytes.Add(-int64(*k))
	*k = 0
}
