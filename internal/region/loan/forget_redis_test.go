// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/test/eventually"
)

// write changes the state of the regions in the Redis of each of the given regions.
func write(t *testing.T, change func(s *writeoff.State) error, reached ...*far) {
	t.Helper()
	for _, f := range reached {
		if _, err := writeoff.Update(t.Context(), f.redis, 0, func(s *writeoff.State) {
			if err := change(s); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheOthersUseALostRegion kills the Redis of the region with half of a limit. When the region
// is written off, the two other regions together admit exactly the whole limit. When the region
// comes back, it learns from another region that it was written off, and admits nothing. After it
// has been taken back, no other region lends its part any more.
func TestTheOthersUseALostRegion(t *testing.T) {
	whole, err := counter.ParseLimit("100/31d fixed_window")
	if err != nil {
		t.Fatal(err)
	}
	regions := startFar(t, &whole)
	lost, one, other := regions[0], regions[1], regions[2]
	key := func(client string) []byte { return fmt.Appendf(nil, "rl1:n:r:{%s}%s", client, counter.KeyTail(&whole)) }
	admit := func(f *far, client string, n int) (admitted int) {
		t.Helper()
		for range n {
			if ok, _, err := f.request(t.Context(), key(client), &whole); err != nil {
				t.Fatal(err)
			} else if ok {
				admitted++
			}
		}
		return admitted
	}
	lost.own.Kill()
	since := counter.Micros(time.Now().Add(-32 * 24 * time.Hour).UnixMicro()) // the clients below were not seen there
	write(t, func(s *writeoff.State) error { return s.Forget("a", []string{"b", "c"}, since) }, one, other)
	for _, f := range []*far{one, other} {
		eventually.Until(t, patience, "the agents know that the region is written off", func() bool {
			e, _ := f.agent.entry("a")
			return e.Forgotten()
		})
	}
	if n := admit(one, "ann", 45) + admit(other, "ann", 70) + admit(one, "ann", 20); n != 100 {
		t.Errorf("ann got %d units in the two regions, want 100", n)
	}
	if n := other.burst(t, key("bob"), &whole, 150); n != 100 {
		t.Errorf("bob got %d units of a burst in one region, want 100", n)
	}

	lost.own.Restart()
	eventually.Until(t, patience, "the region hears that it is written off", func() bool {
		value, err := writeoff.Read(t.Context(), lost.redis)
		if err != nil {
			return false
		}
		s, err := writeoff.Parse(value)
		return err == nil && s.Entries["a"].Forgotten()
	})
	if n := admit(lost, "carol", 3); n != 0 {
		t.Errorf("a region that was written off admitted %d", n)
	}
	if n := other.burst(t, key("carol"), &whole, 150); n != 100 {
		t.Errorf("carol got %d units in another region, want 100", n)
	}

	now := counter.Micros(time.Now().UnixMicro())
	write(t, func(s *writeoff.State) error { return s.Restore("a", []string{"a", "b", "c"}, now+writeoff.Margin) }, one, other, lost)
	for _, f := range regions {
		eventually.Until(t, patience, "the agents know that the region is taken back", func() bool {
			e, _ := f.agent.entry("a")
			return e.Generation == 2
		})
	}
	if n := admit(lost, "dave", 3) + admit(one, "dave", 60) + admit(other, "dave", 60); n != 50 {
		t.Errorf("dave got %d units, want the 50 of the other regions: those of this one are for later windows", n)
	}
}
