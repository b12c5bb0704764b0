// SPDX-License-Identifier: Apache-2.0

package slim

import (
	"crypto/sha256"
	"math/rand/v2"
	"testing"
)

// TestSHA256Pure compares sha256Pure with crypto/sha256, for all lengths around the end of a block.
func TestSHA256Pure(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
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
