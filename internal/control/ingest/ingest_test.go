// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/seed"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// migrated creates a database, applies the migrations, and returns its address.
func migrated(t testing.TB) string { return pgtest.Migrated(t, database.Open, database.Migrate) }

// open opens the database at the address, and creates the partitions for the time now.
func open(t testing.TB, url string, now time.Time) *pgxpool.Pool {
	t.Helper()
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := database.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	keeper := retain.Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}
	if err := keeper.Round(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	return pool
}

// number runs a query whose result is a single number, and returns that number.
func number(t testing.TB, pool *pgxpool.Pool, query string) (n int64) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// feedName returns the identifier of the i-th feed.
func feedName(i int) string { return fmt.Sprintf("%032x", i) }

// someLines returns random lines of usage and events around the time now, with the numbers of
// admitted requests, units and events in these lines.
func someLines(random *rand.Rand, now time.Time) (lines []feed.Line, admitted, units, events int64) {
	for range 1 + random.IntN(50) {
		at := now.Add(-time.Duration(random.Int64N(int64(40 * time.Hour))))
		client := fmt.Sprint("user:", random.IntN(20))
		if random.IntN(2) == 0 {
			n := 1 + random.Int64N(5)
			events += n
			lines = append(lines, feed.Line{Time: at, Kind: "denied", Policy: "shop", Rule: "api", Client: client, IP: "192.0.2.0/24", Status: 429, Count: n})
			continue
		}
		a := random.Int64N(9)
		admitted, units = admitted+a, units+3*a
		lines = append(lines, feed.Line{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: fmt.Sprint("r", random.IntN(3)), Client: client, Admitted: a,
			Units: 3 * a, Denied: random.Int64N(2)})
	}
	return lines, admitted, units, events
}

// TestEachBatchCountsOnce sends each batch of several feeds several times at once, and meanwhile
// kills PostgreSQL. It tests that the minutes, hours and days count each batch exactly once.
func TestEachBatchCountsOnce(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	now := time.Now()
	pool := open(t, server.URL(), now)
	i := &Ingester{Pool: pool}
	first := seed.First(t)
	var mu sync.Mutex
	var admitted, units, events int64
	var feeds sync.WaitGroup
	half := make(chan struct{}, 4)
	for f := range 4 {
		feeds.Go(func() {
			random := rand.New(rand.NewPCG(first, uint64(f)))
			for n := range int64(30) {
				lines, a, u, e := someLines(random, now)
				mu.Lock()
				admitted, units, events = admitted+a, units+u, events+e
				mu.Unlock()
				b := Batch{Feed: feedName(f), Number: n + 1, Node: "n", Lines: lines}
				var twice sync.WaitGroup
				for range 2 {
					twice.Go(func() { own := b; own.Lines = append([]feed.Line(nil), lines...); send(t, i, &own) })
				}
				twice.Wait()
				if n == 15 {
					half <- struct{}{}
				}
			}
		})
	}
	<-half
	server.Kill()
	server.Restart()
	feeds.Wait()
	for query, want := range map[string]int64{
		"SELECT sum(admitted) FROM client_usage":                                        admitted,
		"SELECT sum(units) FROM client_usage":                                           units,
		"SELECT sum(events) FROM rate_limit_events":                                     events,
		"SELECT sum(units) FROM rate_limit_metrics WHERE granularity = 'minute'":        units,
		"SELECT sum(units) FROM rate_limit_metrics WHERE granularity = 'hour'":          units,
		"SELECT sum(units) FROM rate_limit_metrics WHERE granularity = 'day'":           units,
		"SELECT sum(batches) FROM feeds":                                                4 * 30,
		"SELECT sum(denied) FROM client_denials":                                        number(t, pool, "SELECT sum(denied) FROM client_usage"),
		"SELECT count(*) FROM rate_limit_events WHERE ip IS DISTINCT FROM '192.0.2/24'": 0,
	} {
		if got := number(t, pool, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

// send calls Ingester.Take with the batch until a call succeeds, as a node repeats a batch until
// the control plane has stored it.
func send(t testing.TB, i *Ingester, b *Batch) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := i.Take(ctx, b)
		cancel()
		if err == nil {
			return
		}
		if t.Context().Err() != nil {
			return
		}
	}
}

// TestTimesBeyondTheBoundsAreMoved tests lines whose times are out of bounds, because the clock of
// their node is wrong. They are counted at the nearest bound, so they need no partitions of their
// own.
func TestTimesBeyondTheBoundsAreMoved(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pool := open(t, migrated(t), now)
	i := &Ingester{Pool: pool}
	lines := []feed.Line{{Time: now.AddDate(30, 0, 0), Kind: "usage", Units: 1}, {Time: now.AddDate(-30, 0, 0), Kind: "usage", Units: 1},
		{Time: now.AddDate(-30, 0, 0), Kind: "dropped", Count: 1}, {Time: now, Kind: "usage", Units: 1}}
	if repeated, err := i.Take(t.Context(), &Batch{Feed: feedName(1), Number: 7, Lines: lines}); repeated || err != nil {
		t.Fatal(repeated, err)
	}
	if repeated, err := i.Take(t.Context(), &Batch{Feed: feedName(1), Number: 6, Lines: lines}); !repeated || err != nil {
		t.Errorf("an earlier number: %v, %v", repeated, err)
	}
	if n := number(t, pool, "SELECT sum(units) FROM client_usage"); n != 3 {
		t.Errorf("%d units", n)
	}
	if n := number(t, pool, "SELECT redated FROM feeds"); n != 3 {
		t.Errorf("%d lines were moved", n)
	}
}

// TestMissingPartitionsAreCreated sends batches to a database without partitions, and again half a
// year later. It tests that the first call of Take stores each batch.
func TestMissingPartitionsAreCreated(t *testing.T) {
	t.Parallel()
	pool, err := database.Open(t.Context(), migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	keeper := retain.Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}
	now := time.Now()
	i := &Ingester{Pool: pool, Grow: keeper.Grow, Now: func() time.Time { return now }}
	for n := range int64(2) {
		var feeds sync.WaitGroup
		for f := range 4 {
			feeds.Go(func() {
				lines := []feed.Line{{Time: now, Kind: "usage", Units: 1}, {Time: now.Add(-AgeMax), Kind: "denied", Count: 1}}
				if _, err := i.Take(t.Context(), &Batch{Feed: feedName(f), Number: n + 1, Lines: lines}); err != nil {
					t.Error(err)
				}
			})
		}
		feeds.Wait()
		now = now.AddDate(0, 6, 0)
	}
	if units, events := number(t, pool, "SELECT sum(units) FROM client_usage"), number(t, pool, "SELECT sum(events) FROM rate_limit_events"); units != 8 || events != 8 {
		t.Errorf("%d units and %d events, want 8 of each", units, events)
	}
	i.Grow = func(context.Context, time.Time) error { return errors.New("away") }
	now = now.AddDate(0, 6, 0)
	if _, err := i.Take(t.Context(), &Batch{Feed: feedName(1), Number: 9, Lines: []feed.Line{{Time: now, Kind: "usage", Units: 1}}}); err == nil {
		t.Error("a batch without a partition is taken")
	}
}

// TestHostileBatchesAreUnreadable tests that a batch that no node would send is rejected with an
// error that names the place in the batch.
func TestHostileBatchesAreUnreadable(t *testing.T) {
	t.Parallel()
	const ok = `{"time":"2026-11-23T10:00:00.000Z","kind":"denied","count":1`
	for text, want := range map[string]string{
		"":                               "is empty",
		"\n":                             "line 1",
		"nonsense":                       "line 1",
		"{}\n{}":                         "line 1: the time is missing",
		ok + `,"kind":"admin"}`:          "no kind",
		ok + `,"count":-1}`:              "the number -1",
		ok + `,"units":9e99}`:            "line 1",
		ok + `,"ip":"192.0.2.1'; DROP"}`: "no address",
		ok + `,"ip":"fe80::1%eth0"}`:     "no address",
		ok + `,"status":100000}`:         "out of bounds",
		ok + `,"share":2}`:               "out of bounds",
		ok + `,"path":"` + strings.Repeat("x", 1<<16): "line 1",
		strings.Repeat(ok+"}\n", feed.LinesMax+1):     "more than 5000 lines",
	} {
		_, err := Read([]byte(text), false)
		if unreadable := (*Unreadable)(nil); !errors.As(err, &unreadable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v; want %q", text, err, want)
		}
	}
	if _, err := Read([]byte("nonsense"), true); err == nil || !strings.Contains(err.Error(), "gzip") {
		t.Errorf("not compressed: %v", err)
	}
}

// TestOneBadLineLosesNoOther tests that lines that cannot be read are left out and counted, and
// that a text or a number that a column cannot hold is changed until it fits. No line can carry SQL
// or control characters into rows.
func TestOneBadLineLosesNoOther(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	ok := fmt.Sprintf(`{"time":%q,"kind":"usage","units":1`, now.Format(time.RFC3339))
	bad := []string{"", "nonsense", "{}", ok + `,"units":-1,"count":-1}`, ok + `,"kind":"admin"}`, ok + `,"path":"` + strings.Repeat("x", 1<<16) + `"}`,
		strings.Repeat("x", 1<<20), ok + `,"units":9e99}`, ok + `,"kind":"denied","ip":"192.0.2.1'; DROP"}`}
	odd := []string{ok + `,"client":"a\u0000b"}`, ok + `,"client":"` + strings.Repeat("x", 600) + `"}`, ok + `,"client":"u","denied":99999999999999999}`,
		ok + `,"client":"'); DROP TABLE penstock.clients; --\"\u001b[2J"}`}
	text := ok + "}\n" + strings.Join(bad, "\n") + "\n" + strings.Join(odd, "\n") + "\n" + ok + "}"
	c, err := Read([]byte(text), false)
	if err != nil || len(c.Lines) != len(odd)+2 || c.Unread != int64(len(bad)) || c.Altered != int64(len(odd)) || c.First.Line != 2 {
		t.Fatalf("%v %+v", err, c)
	}
	pool := open(t, migrated(t), now)
	i := &Ingester{Pool: pool}
	for n := range int64(10) { // so often that a number of a row would overflow without its bound
		lines := append([]feed.Line(nil), c.Lines...)
		for range 1000 {
			lines = append(lines, feed.Line{Time: now, Kind: "usage", Client: "u", Units: -countMax, Denied: countMax, Admitted: countMax})
		}
		if _, err := i.Take(t.Context(), &Batch{Feed: feedName(1), Number: n + 1, Lines: lines, Unread: c.Unread, Altered: c.Altered}); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]int64{
		"SELECT unread FROM feeds":                                       10 * c.Unread,
		"SELECT altered FROM feeds":                                      10 * c.Altered,
		`SELECT count(*) FROM client_usage WHERE client = E'a\uFFFD00b'`: 1,
		"SELECT count(*) FROM client_usage WHERE octet_length(client) = 512 AND client LIKE 'xxx%…%'":                  1,
		`SELECT count(*) FROM client_usage WHERE client = E'\'); DROP TABLE penstock.clients; --"\uFFFD1b[2J'`:         1,
		"SELECT units FROM client_usage WHERE client = ''":                                                             20,
		"SELECT -units FROM client_usage WHERE client = 'u'":                                                           sumMax,
		"SELECT denied FROM client_denials":                                                                            sumMax,
		"SELECT sum(admitted) FROM usage_this_month WHERE client = 'u'":                                                sumMax,
		"SELECT count(*) FROM rate_limit_metrics WHERE admitted = " + fmt.Sprint(sumMax) + " AND granularity <> 'min'": 3,
	} {
		if got := number(t, pool, query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}

// BenchmarkEvents measures how long it takes to store batches of LinesMax events with the names of
// 10,000 clients, from the bytes that a node sends to the commit.
func BenchmarkEvents(b *testing.B) {
	now := time.Now().UTC()
	i := &Ingester{Pool: open(b, migrated(b), now)}
	var text strings.Builder
	for n := range feed.LinesMax {
		fmt.Fprintf(&text, `{"time":%q,"kind":"denied","policy":"shop","version":"0123456789ab","rule":"rule-%d","limit":"100/1m","decision":"denied",`+
			`"client":"header.x-user:user-%d","tier":"free","ip":"192.0.2.%d","method":"GET","path":"/api/v1/items","node":"web-1","status":429,"count":3}`+"\n",
			now.Add(-time.Duration(n)*time.Millisecond).Format("2006-01-02T15:04:05.000Z"), n%20, n*7919%10_000, n%256)
	}
	body, rows := []byte(text.String()), 0
	for b.Loop() {
		c, err := Read(body, false)
		if err != nil {
			b.Fatal(err)
		}
		rows += len(c.Lines)
		if _, err := i.Take(b.Context(), &Batch{Feed: feedName(1), Number: int64(rows), Lines: c.Lines}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
}
