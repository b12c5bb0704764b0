// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package usage

import (
	"sync/atomic"

	"github.com/penstock/penstock/internal/sources"
)

// A compressed body is kept until its end, which a client can delay. All taps together keep up to
// allBytesMax bytes, besides the first freeBytes of each body. Most bodies are not longer than
// freeBytes, so a client that fills the rest does not affect them. The taps of one source keep at
// most half of allBytesMax, so that the long bodies of other clients find room.
const (
	allBytesMax    = 32 << 20
	sourceBytesMax = allBytesMax / 2
	freeBytes      = 64 << 10
	// sourceCounts is the number of counts of sources. Several sources can share one.
	sourceCounts = 1024
)

// The bytes that taps keep beyond freeBytes each.
var (
	allBytes      atomic.Int64
	bytesOfSource [sourceCounts]atomic.Int64
)

// keptShare is the part of the kept bytes that one tap has.
type keptShare struct {
	bytes  int64
	source *atomic.Int64 // nil if the source is not known
}

// countFor sets the source of the tap's bytes; 0 means an unknown source. countFor must be called
// before the tap keeps any bytes.
func (k *keptShare) countFor(source uint32) {
	if source != 0 {
		k.source = &bytesOfSource[sources.Number(source)%sourceCounts]
	}
}

// keptShare.grow counts the bytes of a compressed body, and reports whether there is room for
// them.
func (k *keptShare) grow(bytes int) bool {
	more := int64(bytes-freeBytes) - k.bytes
	if more <= 0 {
		return true
	}
	k.bytes += more
	room := allBytes.Add(more) <= allBytesMax
	if k.source != nil {
		room = k.source.Add(more) <= sourceBytesMax && room
	}
	return room
}

// keptShare.end gives the tap's part back.
func (k *keptShare) end() {
	allBytes.Add(-k.bytes)
	if k.source != nil {
		k.source.Add(-k.bytes)
	}
	k.bytes = 0
}
