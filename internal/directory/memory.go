// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/penstock/penstock/core/policy"
)

// Memory is a source in the memory of one process. The records are lost when the process ends. The
// zero Memory is empty and ready to use. A Memory is safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	records   map[policy.ClientName]string
	history   []Entry // the latest HistoryMax entries
	forgotten int     // the number of entries that were dropped from the history
	followers map[*func(policy.ClientName)]struct{}
	keys      []KeyName // sorted
}

var _ Source = (*Memory)(nil)

// Read implements [Source].
func (m *Memory) Read(_ context.Context, names []policy.ClientName, texts [][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, name := range names {
		texts[i] = nil
		if text, ok := m.records[name]; ok {
			texts[i] = []byte(text)
		}
	}
	return nil
}

// Records implements [Source]. A place is a name.
func (m *Memory) Records(_ context.Context, of Range) (Part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []policy.ClientName
	for name := range m.records {
		if name.Kind != policy.KindKey && (of.Kind == "" || name.Kind == of.Kind) && name.String() > of.After {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b policy.ClientName) int { return strings.Compare(a.String(), b.String()) })
	var p Part
	if len(names) > of.Most {
		names = names[:of.Most]
		p.After = names[of.Most-1].String()
	}
	for _, name := range names {
		p.Names, p.Texts = append(p.Names, name), append(p.Texts, []byte(m.records[name]))
	}
	return p, nil
}

// Networks implements [Source].
func (m *Memory) Networks(context.Context) (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][]byte{}
	for name, text := range m.records {
		if name.Kind == KindNetwork {
			all[name.ID] = []byte(text)
		}
	}
	return all, nil
}

// Changes implements [Source].
func (m *Memory) Changes(_ context.Context, after string) (Changes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.forgotten + len(m.history)
	c := Changes{Position: strconv.Itoa(end), Whole: true}
	if after == "" {
		return c, nil
	}
	from, err := strconv.Atoi(after)
	if c.Whole = err == nil && from >= m.forgotten && from <= end; c.Whole {
		for _, e := range m.history[from-m.forgotten:] {
			c.Names = append(c.Names, e.Changed())
		}
	}
	return c, nil
}

// Generation implements [Source]. The generation never changes, because the records are lost only
// when the process ends.
func (m *Memory) Generation(context.Context) (string, error) { return "memory", nil }

// Follow implements [Source].
func (m *Memory) Follow(ctx context.Context, changed func(policy.ClientName), missed func()) {
	m.mu.Lock()
	if m.followers == nil {
		m.followers = make(map[*func(policy.ClientName)]struct{})
	}
	m.followers[&changed] = struct{}{}
	missed() // this comes before the first change is received
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	delete(m.followers, &changed)
	m.mu.Unlock()
}

// Swap implements [Source].
func (m *Memory) Swap(_ context.Context, name policy.ClientName, old, text []byte, entry Entry) (swapped bool, err error) {
	m.mu.Lock()
	if before, ok := m.records[name]; ok != (old != nil) || before != string(old) {
		m.mu.Unlock()
		return false, nil
	}
	if m.records == nil {
		m.records = make(map[policy.ClientName]string)
	}
	if m.records[name] = string(text); text == nil {
		delete(m.records, name)
	}
	if len(m.history) == HistoryMax {
		m.history, m.forgotten = slices.Delete(m.history, 0, 1), m.forgotten+1
	}
	m.history = append(m.history, entry)
	followers := slices.Collect(maps.Keys(m.followers))
	m.mu.Unlock()
	for _, changed := range followers {
		(*changed)(name)
	}
	return true, nil
}

// SwapAll implements [Source].
func (m *Memory) SwapAll(ctx context.Context, swaps []Swap) (swapped []bool, err error) {
	swapped = make([]bool, len(swaps))
	for i := range swaps {
		s := &swaps[i]
		if swapped[i], err = m.Swap(ctx, s.Name, s.Old, s.Text, s.Entry); err != nil {
			return nil, err
		}
	}
	return swapped, nil
}

// Complete implements [Source].
func (m *Memory) Complete(context.Context) error { return nil }

// History implements [Source].
func (m *Memory) History(_ context.Context, name policy.ClientName, most int) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []Entry
	for _, e := range slices.Backward(m.history) {
		if len(found) < most && (name == policy.ClientName{} || e.Client == name) {
			found = append(found, e)
		}
	}
	return found, nil
}

// KeyHashes implements [Source].
func (m *Memory) KeyHashes(_ context.Context, name string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hashes(name), nil
}

func (m *Memory) hashes(name string) (hashes []string) {
	for _, k := range m.keys[m.keyPlace(KeyName{Name: name}):] {
		if k.Name != name {
			break
		}
		hashes = append(hashes, k.Hash)
	}
	return hashes
}

// keyPlace returns the index of the first key in m.keys that is equal to k or comes after k.
func (m *Memory) keyPlace(k KeyName) int {
	place, _ := slices.BinarySearchFunc(m.keys, k, compareKeys)
	return place
}

func compareKeys(a, b KeyName) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Hash, b.Hash))
}

// KeysAfter implements [Source].
func (m *Memory) KeysAfter(_ context.Context, name string, most int) ([]KeyName, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := 0
	if name != "" {
		from = m.keyPlace(KeyName{Name: name + "\x00"})
	}
	return slices.Clone(m.keys[from:min(from+most, len(m.keys))]), nil
}

// AddKey implements [Source].
func (m *Memory) AddKey(_ context.Context, key KeyName, others int) (added bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.hashes(key.Name)) != others {
		return false, nil
	}
	m.keys = slices.Insert(m.keys, m.keyPlace(key), key)
	return true, nil
}

// DropKey implements [Source].
func (m *Memory) DropKey(_ context.Context, key KeyName) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = slices.DeleteFunc(m.keys, func(k KeyName) bool { return k == key })
	return nil
}
