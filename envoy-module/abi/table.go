// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/envoy-module/front"
)

// table assigns numbers to values, because C must not keep pointers to Go's memory. No number is 0.
type table[T any] struct {
	mu    sync.RWMutex
	slots []*T
	free  []uint64
}

var (
	fronts    frontTable
	streams   table[front.Stream]   // the requests that wait
	settlings table[front.Settling] // the responses on which a charge depends
)

// frontTable assigns numbers to configurations. Each request looks up its configuration, so the
// method named get takes no lock. Workers would wait for each other at a lock.
type frontTable struct {
	mu    sync.Mutex
	slots atomic.Pointer[[]*front.Front] // never changed; the methods replace it
}

func (t *frontTable) add(f *front.Front) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := t.copied()
	free := slices.Index(slots, nil)
	if free < 0 {
		free, slots = len(slots), append(slots, nil)
	}
	slots[free] = f
	t.slots.Store(&slots)
	return uint64(free + 1)
}

// frontTable.copied returns a copy of the slots. The lock must be held.
func (t *frontTable) copied() []*front.Front {
	if slots := t.slots.Load(); slots != nil {
		return slices.Clone(*slots)
	}
	return nil
}

func (t *frontTable) get(id uint64) *front.Front { return (*t.slots.Load())[id-1] }

// frontTable.take returns a configuration and frees its number.
func (t *frontTable) take(id uint64) *front.Front {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := t.copied()
	f := slots[id-1]
	slots[id-1] = nil
	t.slots.Store(&slots)
	return f
}

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

// table.take returns a value and frees its number.
func (t *table[T]) take(id uint64) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	value := t.slots[id-1]
	t.slots[id-1] = nil
	t.free = append(t.free, id)
	return value
}
