// SPDX-License-Identifier: Apache-2.0

package core

import (
	"crypto/sha256"
	"testing"
)

// TestSHA256Pure: the filter's hashes are those of everybody else, of every length about a block's end.
func TestSHA256Pure(t *testing.T) {
	rnd := newRandom(t)
	data := make([]byte, 10_000)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for n := range 300 {
		if got, want := sha256Pure(data[:n]), sha256.Sum256(data[:n]); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
	}
	if got, want := sha256Pure(data), sha256.Sum256(data); got != want {
		t.Errorf("all: %x, want %x", got, want)
	}
	if n := testing.AllocsPerRun(10, func() { sha256Pure(data) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
