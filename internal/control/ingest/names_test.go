// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/feed"
)

// TestAFloodOfMadeUpNames tests that clients without a record get a bounded number of rows, that
// their requests are counted even if their names are not kept, and that customers with a record
// have exact numbers under their names. The most active client of a batch keeps its name while rows
// are left.
func TestAFloodOfMadeUpNames(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	pool := open(t, migrated(t), now)
	const customers, feeds, batches, each = 50, 4, 3, 250
	if _, err := pool.Exec(t.Context(), "INSERT INTO clients (kind, id, revision, updated_at) "+
		"SELECT 'user', 'c' || n, 1, now() FROM generate_series(1, $1) n", customers); err != nil {
		t.Fatal(err)
	}
	names := NamesMax{Minute: 500, Day: 1250}
	i := &Ingester{Pool: pool, Names: names}
	for minute := range 4 {
		at := now.Add(time.Duration(minute) * time.Minute)
		i.Now = func() time.Time { return at }
		var sending sync.WaitGroup
		for f := range feeds {
			sending.Go(func() {
				for n := range batches {
					lines := []feed.Line{{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Client: "user:busy", Admitted: 9, Units: 9}}
					for c := range customers {
						lines = append(lines, feed.Line{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Client: fmt.Sprint("user:c", c+1), Denied: 1})
					}
					for x := range each {
						lines = append(lines, feed.Line{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Tier: "free",
							Client: fmt.Sprintf("user:x%d-%d-%d-%d", minute, f, n, x), Denied: 1})
					}
					send(t, i, &Batch{Feed: feedName(f), Number: int64(minute*batches + n + 1), Node: "n", Lines: lines})
				}
			})
		}
		sending.Wait()
		if got := number(t, pool, "SELECT count(DISTINCT client) FROM client_usage WHERE client LIKE 'user:x%'"); got > int64(min((minute+1)*names.Minute, names.Day)) {
			t.Errorf("%d made-up names have rows after %d minutes", got, minute+1)
		}
	}
	named := number(t, pool, "SELECT count(*) FROM client_usage WHERE client LIKE 'user:x%'")
	if day := int64(names.dayPlaces(now.Add(3 * time.Minute))); named > day || named < day-2*feeds { // if several feeds name one new client at once, each takes a place
		t.Errorf("%d made-up names have rows, want %d", named, day)
	}
	const all = 4 * feeds * batches
	// A minute has a limited number of new rows. The made-up names of the first batches may take
	// all of them, so the most active client may get its row later.
	busy := number(t, pool, "SELECT admitted FROM client_usage WHERE client = 'user:busy'")
	if busy < all*9/2 || busy > all*9 {
		t.Errorf("the most active client has %d requests, want %d", busy, all*9)
	}
	for query, want := range map[string]int64{
		"SELECT sum(denied) FROM client_usage":                                                             all * (each + customers),
		"SELECT sum(denied) FROM client_denials":                                                           all * (each + customers),
		"SELECT sum(denied) FROM rate_limit_metrics WHERE granularity = 'day'":                             all * (each + customers),
		fmt.Sprintf("SELECT count(*) FROM client_usage WHERE client LIKE 'user:c%%' AND denied = %d", all): customers,
		"SELECT sum(unnamed) FROM feeds":                                                                   all*each - named + (all - busy/9),
		"SELECT count(*) FROM client_denials WHERE client LIKE 'user:x%'":                                  named,
	} {
		if got := number(t, pool, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

// TestPlacesComeBackDuringTheDay tests that a flood of made-up names uses only the rows that are
// left. A client with usage of the day before keeps its name, and later in the day new clients get
// names again. A batch that is not written returns the rows that it reserved.
func TestPlacesComeBackDuringTheDay(t *testing.T) {
	var b budget
	most, day := NamesMax{Minute: 400, Day: 1000}, time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	named, all := 0, 0
	flood := func(at time.Time) (free func()) {
		batch := make([]stranger, 300)
		for i := range batch {
			batch[i].Client = fmt.Sprint("user:x", all+i)
		}
		out, free := b.take(batch, at, most)
		all, named = all+len(batch), named+len(batch)-len(out)
		return free
	}
	for minute := range 10 {
		flood(day.Add(time.Duration(minute) * time.Minute))
	}
	if named < 500 || named > 510 {
		t.Errorf("%d made-up names have places early in the day, want the half of 1000", named)
	}
	at := day.Add(10 * time.Minute)
	if out, _ := b.take([]stranger{{"user:ann", true}, {"user:bob", false}}, at, most); out["user:ann"] || !out["user:bob"] {
		t.Errorf("%v have no place, want only the new client", out)
	}
	for hour := 1; hour < 24; hour++ {
		at = day.Add(time.Duration(hour) * time.Hour)
		if out, _ := b.take([]stranger{{"user:new", false}}, at, most); len(out) > 0 {
			t.Errorf("a new client has no place after %d hours", hour)
		}
		flood(at)() // these places are returned
		flood(at)
	}
	if b.used.inDay > 1000 || b.used.inDay < 950 {
		t.Errorf("%d places of the day are taken, want nearly 1000", b.used.inDay)
	}
}
