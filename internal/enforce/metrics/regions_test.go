// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

// always is a store that grants every check.
type always struct{}

func (always) Take(_ context.Context, checks []counter.Check, results []counter.Result) error {
	for i := range checks {
		results[i] = counter.Result{At: counter.Second, Granted: checks[i].Cost}
	}
	return nil
}

func (a always) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		calls[i].Err = a.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// TestChangesThatAreNotTold: a scrape shows how many changed counters of all stores the region's
// agent may not have read. It shows nothing for stores without regions.
func TestChangesThatAreNotTold(t *testing.T) {
	limit, err := counter.ParseLimit("5/1h")
	if err != nil {
		t.Fatal(err)
	}
	var all []*store.Store
	for range 2 {
		regions := regionstore.New(always{}, regionstore.Agency{Mark: func(context.Context, []string) (int64, bool, error) { return 3, true, nil }}, nil)
		defer regions.Close()
		all = append(all, &store.Store{Loans: regions})
		tooLong := make([]byte, regionstore.KeyBytesMax+1)
		for _, key := range [][]byte{[]byte("short"), tooLong} {
			checks := [1]counter.Check{{Key: key, Limit: &limit, Cost: 1, Gossip: true}}
			if err := regions.Take(t.Context(), checks[:], make([]counter.Result, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"2", "6"} // omitted and removed
	eventually.Until(t, 30*time.Second, "the names are written", func() bool { return slices.Equal(series(t, Stores(slices.Values(all))), want) })
	if got := series(t, Stores(slices.Values([]*store.Store{{}}))); len(got) > 0 {
		t.Errorf("a store without regions has %q", got)
	}
}
