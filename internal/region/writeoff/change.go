// SPDX-License-Identifier: Apache-2.0

package writeoff

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// Forget writes a region off. The region's part can be lent in windows that begin at the instant
// named since or later. All other regions that are not written off must be reached: only then do
// all operators choose the same steward. Forget changes nothing if the region is written off
// already and its steward is not.
func (s *State) Forget(name string, reached []string, since counter.Micros) error {
	if !slices.Contains(s.Names, name) {
		return fmt.Errorf("%q is none of the policy's regions, which are %q", name, s.Names)
	}
	names := slices.Sorted(slices.Values(s.Names))
	steward := ""
	for _, other := range names {
		switch {
		case other == name || s.Entries[other].Forgotten():
		case !slices.Contains(reached, other):
			return fmt.Errorf("the policy has the region %s, too: add --region %s=redis://host:6379, or write it off first if it is down", other, other)
		case steward == "":
			steward = other
		}
	}
	if steward == "" {
		return fmt.Errorf("%s is the last region, so there is none that could use its part", name)
	}
	for _, lost := range names {
		e := s.Entries[lost]
		switch stewards := s.Entries[e.Steward]; {
		case lost == name && !e.Forgotten():
			s.set(lost, Entry{e.Generation + 1, max(since, e.Since), steward})
		case e.Forgotten() && e.Steward == name:
			s.set(lost, Entry{e.Generation + 2, max(since, e.Since), steward}) // what the steward has lent is not known
		case lost == name && stewards.Forgotten():
			// Two operators wrote both regions off at the same time. The steward has lent until it
			// was lost.
			s.set(lost, Entry{e.Generation + 2, max(since, e.Since, stewards.Since), steward})
		}
	}
	return nil
}

// Restore takes a region back. The region uses its part in windows that begin at the instant named
// since or later. That instant is at least [Margin] later than the clocks of all regions. The
// region's steward and the region itself must be reached. Restore changes nothing if the region is
// not written off.
func (s *State) Restore(name string, reached []string, since counter.Micros) error {
	e, known := s.Entries[name]
	switch {
	case !known && !slices.Contains(s.Names, name):
		return fmt.Errorf("%q is none of the policy's regions, which are %q", name, s.Names)
	case !e.Forgotten():
		return nil
	}
	needed := []string{name}
	if !s.Entries[e.Steward].Forgotten() {
		needed = append(needed, e.Steward)
	}
	for _, other := range needed {
		if !slices.Contains(reached, other) {
			return fmt.Errorf("the Redis of %s must hear of it: add --region %s=redis://host:6379", other, other)
		}
	}
	s.set(name, Entry{Generation: e.Generation + 1, Since: max(since, e.Since)})
	return nil
}

func (s *State) set(name string, e Entry) {
	if s.Entries == nil {
		s.Entries = make(map[string]Entry)
	}
	s.Entries[name] = e
}
