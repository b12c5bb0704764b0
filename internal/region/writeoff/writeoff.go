// SPDX-License-Identifier: Apache-2.0

// Package writeoff describes which regions an operator has written off, and who may use their parts
// of limits.
//
// # Promise
//
// In each aligned window, a region's part of a limit is used by the region itself or by its
// steward, and never by both. The generation of an [Entry] shows which of the two uses the part. It
// grows with each change: it is even while the region uses the part, and odd while the steward
// does. Entries are merged by taking the greater generation, so copies may arrive late, repeatedly
// and in any order.
//
// The Since of a generation separates its windows from those of the previous generation. Nobody
// uses the part in a window that began before Since. If windows slide, nobody uses it in a window
// whose previous window began before Since.
//
//   - When a region is written off, the operator states that the region uses nothing from Since on.
//     If that is wrong, the regions together exceed a limit by at most the region's part and the
//     parts that it lends as a steward, until the region learns that it is written off.
//   - When a region is taken back, Since is at least [Margin] later than the clocks of all regions
//     when the steward is informed. An agent lends the part of another region only if it has read
//     its own Redis within [FreshTime], so it stops before Since. If the operator's write arrives
//     later, Redis refuses it.
//
// # Price
//
// Nobody can use a part in the window of a change, nor in the next window if windows slide.
//
// # When not to use it
//
// Do not use it for limits that regions do not lend each other: nobody can use the part of another
// region.
package writeoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// Key is the key of the state in the Redis of a region. It shares a server with the channels of the
// agents.
const Key = "rl1:~writeoff:{~loans}"

// Margin is how much later than the present a change takes effect. FreshTime is how long an agent
// may act as a steward by what it has read.
const (
	Margin    = counter.Minute
	FreshTime = 10 * time.Second
)

// Bounds of a state.
const (
	regionsMax    = 64 // the regions of the policy, and former ones
	nameBytesMax  = 32
	stateBytesMax = 16 << 10
	generationMax = 1 << 50
)

// ErrDamaged reports that a state in Redis cannot be read.
var ErrDamaged = errors.New("the state of the regions is damaged")

// Entry says who uses the part of a region. The zero Entry is that of a region that was never
// written off.
type Entry struct {
	Generation uint64         `json:"generation"`
	Since      counter.Micros `json:"since"`
	Steward    string         `json:"steward,omitempty"` // the region that lends the part, if the generation is odd
}

// State is what the Redis of a region holds.
type State struct {
	Here    string           `json:"here"`  // the region
	Names   []string         `json:"names"` // the regions of the policy
	Entries map[string]Entry `json:"regions"`
}

// Parse returns the state of a value in Redis. An absent value is the zero State.
func Parse(value []byte) (s State, err error) {
	if value == nil {
		return s, nil
	}
	if len(value) > stateBytesMax {
		return State{}, fmt.Errorf("%w: it has %d bytes", ErrDamaged, len(value))
	}
	if err := json.Unmarshal(value, &s); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if !isName(s.Here) || slices.ContainsFunc(s.Names, func(name string) bool { return !isName(name) }) {
		return State{}, fmt.Errorf("%w: it names no region", ErrDamaged)
	}
	if err := Check(s.Entries); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return s, nil
}

// Check returns an error unless entries, which may come from another machine, are valid.
func Check(entries map[string]Entry) error {
	if len(entries) > regionsMax {
		return fmt.Errorf("%d regions are more than %d", len(entries), regionsMax)
	}
	for name, e := range entries {
		switch {
		case !isName(name):
			return fmt.Errorf("%q is not the name of a region", name)
		case e.Generation < 1 || e.Generation > generationMax || e.Since < 0:
			return fmt.Errorf("the generation %d of region %q since %d is out of bounds", e.Generation, name, e.Since)
		case e.Forgotten() != (e.Steward != "") || e.Steward == name || e.Steward != "" && !isName(e.Steward):
			return fmt.Errorf("the steward %q of region %q is not valid", e.Steward, name)
		}
	}
	return nil
}

func isName(name string) bool {
	return name != "" && len(name) <= nameBytesMax && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Merge adopts the entries that are newer than those of the state, and reports whether there were
// any. It adds no region beyond those that a state may have.
func (s *State) Merge(entries map[string]Entry) (changed bool) {
	for name, e := range entries {
		if own, known := s.Entries[name]; !e.newer(own) || !known && len(s.Entries) >= regionsMax {
			continue
		}
		if s.Entries == nil {
			s.Entries = make(map[string]Entry)
		}
		s.Entries[name], changed = e, true
	}
	return changed
}

// newer reports whether an entry replaces another. Two operators can write the same generation at
// the same time. All regions then choose the same entry of the two.
func (e Entry) newer(than Entry) bool {
	switch {
	case e.Generation != than.Generation:
		return e.Generation > than.Generation
	case e.Since != than.Since:
		return e.Since > than.Since
	default:
		return e.Steward > than.Steward
	}
}

// Clone returns a copy.
func (s *State) Clone() State {
	return State{Here: s.Here, Names: slices.Clone(s.Names), Entries: maps.Clone(s.Entries)}
}

// Text returns the value for Redis.
func (s *State) Text() ([]byte, error) { return json.Marshal(s) }

// Forgotten reports whether the region is written off.
func (e Entry) Forgotten() bool { return e.Generation%2 == 1 }

// Shuts reports whether the region itself must not use its part of a limit at a reading of its
// clock.
func (e Entry) Shuts(l *counter.Limit, b *counter.Bounds, at counter.Micros) bool {
	return e.Generation > 0 && (e.Forgotten() || !e.settled(l, b, at))
}

// Lends reports whether a steward may lend the region's part at a reading of the steward's clock.
func (e Entry) Lends(steward string, l *counter.Limit, b *counter.Bounds, at counter.Micros) bool {
	return e.Forgotten() && e.Steward == steward && e.settled(l, b, at)
}

// Entry.settled reports whether all that a window counts was used at Since or later.
func (e Entry) settled(l *counter.Limit, b *counter.Bounds, at counter.Micros) bool {
	start, before, ok := windowsAt(l, b, at)
	if l.Algorithm() == counter.SlidingWindow {
		start = before
	}
	return ok && start >= e.Since
}

// windowsAt returns the beginnings of the window that contains an instant and of the previous
// window.
func windowsAt(l *counter.Limit, b *counter.Bounds, at counter.Micros) (start, before counter.Micros, ok bool) {
	if l.Calendar() == 0 {
		start = at - at%l.Window()
		return start, start - l.Window(), true
	}
	for i := 2; b != nil && i >= 1; i-- {
		if at >= b[i] {
			return b[i], b[i-1], true
		}
	}
	return 0, 0, false
}

// PartKey returns the key of the counter with which the steward counts what it has lent of a
// region's part. The namespace is the beginning of the counter's key. Each generation begins with
// unused counters.
func PartKey(namespace string, key []byte, name string, generation uint64) []byte {
	rest := strings.TrimPrefix(string(key), namespace)
	return fmt.Appendf(nil, "%s~of-%s-%d:%s", namespace, name, generation, rest)
}
