// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

import (
	"sync"

	"github.com/penstock/penstock/envoy-module/front"
)

// table gives numbers to values, because C must not keep pointers to memory of Go. No number is 0.
type table[T any] struct {
	mu    sync.RWMutex
	slots []*T
	free  []uint64
}

var (
	fronts    table[front.Front]
	streams   table[front.Stream]   // the requests that wait
	settlings table[front.Settling] // the responses on which charges depend
)

func (t *table[T]) add(value *T) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := len(t.free) - 1; last >= 0 {
		id := t.free[last]
		t.free = t.free[:last]
		t.slots[id-1] = value
		return id
	}
	t.slots = append(t.slots, value)
	return uint64(len(t.slots))
}

func (t *table[T]) get(id uint64) *T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.slots[id-1]
}

// The method take returns a value and frees its number.
func (t *table[T]) take(id uint64) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	value := t.slots[id-1]
	t.slots[id-1] = nil
	t.free = append(t.free, id)
	return value
}
