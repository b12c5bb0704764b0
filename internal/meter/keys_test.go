// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"encoding/binary"
	"sync"
	"testing"
)

// numbered returns a made-up hash of a key. The hash contains the number n.
func numbered(n int) (hash [32]byte) {
	binary.BigEndian.PutUint64(hash[:], uint64(n))
	return hash
}

// TestUsedKeysAreBounded tests that keys beyond the bound are not recorded, even when keys are
// returned. It also tests that the latest time of a key counts, and that a meter records nothing
// while it is off.
func TestUsedKeysAreBounded(t *testing.T) {
	t.Parallel()
	m := New()
	if m.NoteKey(numbered(1), 1) || (*Meter)(nil).NoteKey(numbered(1), 1) {
		t.Error("a meter that is off notes a key")
	}
	defer m.Use()()
	var noting sync.WaitGroup
	for g := range 4 {
		noting.Go(func() {
			for n := range UsedKeysMax + 1000 {
				if !m.NoteKey(numbered(n), int64(10+g)) {
					t.Error("a meter that is on does not note a key")
				}
			}
		})
	}
	noting.Wait()
	taken := m.TakeKeys()
	if len(taken) != UsedKeysMax || len(m.TakeKeys()) != 0 {
		t.Fatalf("%d keys were taken, want %d", len(taken), UsedKeysMax)
	}
	m.NoteKey(taken[0].Hash, 99)
	m.NoteKey(numbered(1<<30), 5)
	m.ReturnKeys(taken)
	again := map[[32]byte]int64{}
	for _, use := range m.TakeKeys() {
		again[use.Hash] = use.Micros
	}
	if len(again) != UsedKeysMax || again[taken[0].Hash] != 99 || again[numbered(1<<30)] != 5 {
		t.Errorf("%d keys were taken, the times are %d and %d", len(again), again[taken[0].Hash], again[numbered(1<<30)])
	}
}
