// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"sync"
	"sync/atomic"
)

// UsedKeysMax bounds the number of API keys that a meter records between two calls of TakeKeys. The
// use of a further key is dropped, but a later use can be recorded.
const UsedKeysMax = 1 << 16

// KeyUse is the use of an API key.
type KeyUse struct {
	Hash   [32]byte // the SHA-256 of the key
	Micros int64    // the time, in microseconds since 1970
}

// usedKeys are the API keys that were used since the last TakeKeys.
type usedKeys struct {
	mu   sync.Mutex
	n    atomic.Int64 // the number of keys, which is read without the lock
	uses map[[32]byte]int64
}

// NoteKey notes that an API key was used. Call it rarely for each key, because it takes a lock. The
// result is false if the meter is off.
func (m *Meter) NoteKey(hash [32]byte, micros int64) bool {
	if !m.On() {
		return false
	}
	m.keys.addUse(KeyUse{hash, micros})
	return true
}

func (k *usedKeys) addUse(use KeyUse) {
	if k.n.Load() >= UsedKeysMax { // a flood of keys does not contend for the lock
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before, known := k.uses[use.Hash]
	switch {
	case known && before >= use.Micros, !known && len(k.uses) >= UsedKeysMax:
		return
	case k.uses == nil:
		k.uses = make(map[[32]byte]int64)
	}
	k.uses[use.Hash] = use.Micros
	k.n.Store(int64(len(k.uses)))
}

// TakeKeys returns the API keys that were used since the last call, in no order. The time of
// a key is that of its latest recorded use.
func (m *Meter) TakeKeys() (uses []KeyUse) {
	m.keys.mu.Lock()
	taken := m.keys.uses
	m.keys.uses = nil
	m.keys.n.Store(0)
	m.keys.mu.Unlock()
	for hash, micros := range taken {
		uses = append(uses, KeyUse{hash, micros})
	}
	return uses
}

// ReturnKeys adds the result of TakeKeys back to the meter, if it could not be stored elsewhere.
func (m *Meter) ReturnKeys(uses []KeyUse) {
	for i := range uses {
		m.keys.addUse(uses[i])
	}
}
