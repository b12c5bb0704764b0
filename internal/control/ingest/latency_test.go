// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestLatenciesAddUp sends random latencies of two days as histograms, in random order and some
// twice. It tests that minutes, hours and days have the same sums, and that each percentile is
// within the bucket of the true one.
func TestLatenciesAddUp(t *testing.T) {
	t.Parallel()
	random := seed.Random(t)
	end := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	pool := open(t, migrated(t), end)
	i := &Ingester{Pool: pool, Now: func() time.Time { return end }}
	lines, truth, denied := someLatencies(random, end)
	lines = append(lines, feed.Line{Time: end, Kind: feed.KindUsage, Policy: "shop", Latency: [][3]int64{{-1, 1, 1}, {104, 1, 1}, {5, -1, 1}, {5, 1, 1 << 62}}})
	number1 := int64(0)
	for batch := range slices.Chunk(lines, 23) {
		number1++
		for range 1 + random.IntN(2) {
			if _, err := i.Take(t.Context(), &Batch{Feed: feedName(1), Number: number1, Lines: slices.Clone(batch)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, granularity := range []string{"minute", "hour", "day"} {
		where := " FROM rate_limit_latencies WHERE granularity = '" + granularity + "'"
		if n, of := number(t, pool, "SELECT sum(admitted + denied)"+where), number(t, pool, "SELECT sum(denied)"+where); n != 4000 || of != denied {
			t.Errorf("by %s there are %d decisions, %d denied; want 4000 and %d", granularity, n, of, denied)
		}
	}
	if n := number(t, pool, "SELECT count(*) FROM client_usage"); n != 0 {
		t.Errorf("%d rows of usage", n)
	}
	r := &reports.Reports{Pool: pool}
	found, err := r.Endpoints(t.Context(), reports.EndpointQuery{Granularity: "day", From: end.Add(-72 * time.Hour), To: end.Add(time.Hour), Limit: 10})
	if err != nil || len(found) != len(truth) {
		t.Fatalf("%d days, %v; want %d", len(found), err, len(truth))
	}
	for _, e := range found {
		all := truth[e.At]
		slices.Sort(all)
		for share, got := range map[float64]float64{0.5: e.P50, 0.95: e.P95, 0.99: e.P99} {
			want := all[max(0, int(float64(len(all))*share+0.999999)-1)]
			if from, to := meter.BucketBounds(meter.BucketOf(want)); got < float64(from) || got > float64(to) {
				t.Errorf("%v of %d on %s took %v µs, want %d (%d to %d)", share, len(all), e.At.Format(time.DateOnly), got, want, from, to)
			}
		}
	}
	if n := number(t, pool, "SELECT count(*) FROM latency_bounds WHERE to_us - from_us < 1 OR from_us < 0"); n != 0 {
		t.Errorf("%d buckets have no bounds", n)
	}
	for bucket := range int64(meter.Buckets) {
		from, to := meter.BucketBounds(int(bucket))
		if a, b := number(t, pool, fmt.Sprintf("SELECT from_us FROM latency_bounds WHERE bucket = %d", bucket)),
			number(t, pool, fmt.Sprintf("SELECT to_us FROM latency_bounds WHERE bucket = %d", bucket)); a != from || b != to {
			t.Errorf("bucket %d is from %d to %d in the view, and from %d to %d on nodes", bucket, a, b, from, to)
		}
	}
}

// someLatencies returns lines that report 4,000 latencies of the 36 hours before end, the same
// latencies grouped by day, and how many of the decisions were denials.
func someLatencies(random *rand.Rand, end time.Time) (lines []feed.Line, truth map[time.Time][]int64, denied int64) {
	truth = map[time.Time][]int64{}
	for range 200 {
		at := end.Add(-time.Duration(random.Int64N(int64(36 * time.Hour)))).Truncate(5 * time.Second)
		m := meter.New()
		done := m.Use()
		for range 20 {
			micros := int64(random.ExpFloat64() * 800)
			day := at.Truncate(24 * time.Hour)
			truth[day] = append(truth[day], micros)
			m.CountLatency(&meter.LatencyKey{Policy: "shop", Rule: "api", Endpoint: "/api/*"}, micros, micros%7 == 0)
			if micros%7 == 0 {
				denied++
			}
		}
		done()
		for _, row := range m.TakeLatencies() {
			l := feed.Line{Time: at, Kind: feed.KindUsage, Policy: row.Policy, Rule: row.Rule, Endpoint: row.Endpoint}
			for _, c := range row.Counts {
				l.Latency = append(l.Latency, [3]int64{int64(c.Bucket), int64(c.Admitted), int64(c.Denied)})
			}
			lines = append(lines, l)
		}
	}
	return lines, truth, denied
}

// TestTheMostActiveClientsKeepTheirNames tests that a minute that is over keeps the most active
// clients by name, and all other clients in one row. A minute that is not over keeps every client,
// and usage that arrives late is added exactly.
func TestTheMostActiveClientsKeepTheirNames(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Minute)
	pool := open(t, migrated(t), now)
	i := &Ingester{Pool: pool, Now: func() time.Time { return now }}
	minute := now.Add(-time.Hour)
	last := int64(0)
	send := func(at time.Time, clients, each int) {
		t.Helper()
		var lines []feed.Line
		for c := range clients {
			lines = append(lines, feed.Line{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Client: fmt.Sprintf("user:%04d", c),
				Admitted: int64(each * (clients - c)), Denied: 1, Units: 2})
		}
		last++
		if _, err := i.Take(t.Context(), &Batch{Feed: feedName(1), Number: last, Lines: lines}); err != nil {
			t.Fatal(err)
		}
	}
	fold := func(want int) {
		t.Helper()
		if n, err := i.Fold(t.Context()); err != nil || n != want {
			t.Errorf("%d minutes were folded, %v; want %d", n, err, want)
		}
	}
	send(minute, ClientsOfAMinute+500, 1)
	send(now, ClientsOfAMinute+1, 1)
	fold(1)
	fold(0)
	check := func(query string, want int64) {
		t.Helper()
		if got := number(t, pool, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	of := " FROM client_minutes WHERE at = '" + minute.Format(time.RFC3339) + "'"
	total := number(t, pool, "SELECT sum(admitted)::bigint FROM rate_limit_metrics WHERE granularity = 'hour' AND at = '"+minute.Truncate(time.Hour).Format(time.RFC3339)+"'")
	check("SELECT count(*)"+of+" AND client <> ''", ClientsOfAMinute)
	check("SELECT count(*)"+of+" AND client = 'user:1000'", 0)
	check("SELECT count(*)"+of+" AND client = 'user:0999'", 1)
	check("SELECT denied"+of+" AND client = ''", 500)
	check("SELECT sum(admitted)::bigint"+of, total)
	check("SELECT count(*) FROM client_minutes WHERE at = '"+now.Format(time.RFC3339)+"'", ClientsOfAMinute+1)
	send(minute, 3, 5000)
	send(minute, ClientsOfAMinute+500, 0)
	fold(1)
	check("SELECT admitted"+of+" AND client = 'user:0002'", ClientsOfAMinute+500-2+5000)
	check("SELECT count(*)"+of+" AND client <> ''", ClientsOfAMinute)
	check("SELECT sum(admitted)::bigint"+of, total+5000*6)
	check("SELECT sum(denied)::bigint"+of, 2*(ClientsOfAMinute+500)+3)
}
