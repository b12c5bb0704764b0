// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ingest"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/module"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/s3test"
)

// The environment variables of a process that archives or restores, and is killed at one of its
// steps.
const (
	childDatabase = "PENSTOCK_TEST_DATABASE"
	childEndpoint = "PENSTOCK_TEST_ENDPOINT"
	childNow      = "PENSTOCK_TEST_NOW"
	childRestore  = "PENSTOCK_TEST_RESTORE" // a month to restore; otherwise all months are archived
	childStep     = "PENSTOCK_TEST_STEP"    // the step at which the process is killed
)

func TestMain(m *testing.M) {
	for _, variable := range s3test.Environment() {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	if os.Getenv(childDatabase) != "" {
		os.Exit(child())
	}
	os.Exit(pgtest.Main(m))
}

// child archives or restores, and kills its own process at a step.
func child() int {
	ctx := context.Background()
	pool, err := database.Open(ctx, os.Getenv(childDatabase))
	if err != nil {
		panic(err)
	}
	bucket, err := OpenBucket(Place{URL: "s3://" + s3test.Bucket + "/penstock", Endpoint: os.Getenv(childEndpoint), Region: "us-east-1"})
	if err != nil {
		panic(err)
	}
	now, err := time.Parse(time.RFC3339, os.Getenv(childNow))
	if err != nil {
		panic(err)
	}
	a := &Archiver{Pool: pool, Bucket: bucket, Logger: slog.New(slog.DiscardHandler), rowsMax: 150, step: func(step string) {
		if step == os.Getenv(childStep) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}}
	if partition := os.Getenv(childRestore); partition != "" {
		_, err = a.Restore(ctx, partition, now, now.Add(time.Hour))
	} else {
		_, err = a.Round(ctx, now)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// world is a database with months of events and usage, and a bucket.
type world struct {
	t        testing.TB
	url      string
	pool     *pgxpool.Pool
	s3       *s3test.Server
	archiver *Archiver
	old, now time.Time // old is about the instant of all rows; at the instant now, their retention time is over
	log      *bytes.Buffer
}

// rowsOfWorld is how many rows of events and of usage a world has.
const rowsOfWorld = 700

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, url: pgtest.Migrated(t, database.Open, database.Migrate), s3: s3test.Start(t), log: new(bytes.Buffer)}
	var err error
	if w.pool, err = database.Open(t.Context(), w.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.old = time.Date(2019, 2, 11, 12, 30, 0, 123_456_000, time.UTC)
	w.now = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC) // usage is kept for seven years
	if err := (&retain.Keeper{Pool: w.pool, Logger: slog.New(slog.DiscardHandler)}).Round(t.Context(), w.old); err != nil {
		t.Fatal(err)
	}
	w.fill(rowsOfWorld)
	for _, table := range []string{"rate_limit_events", "client_usage"} { // the months without rows
		partitions, err := retain.Partitions(t.Context(), w.pool, table)
		if err != nil {
			t.Fatal(err)
		}
		for partition := range partitions {
			if partition != eventsMonth && partition != usageMonth {
				if _, err := w.pool.Exec(t.Context(), "DROP TABLE "+partition); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	w.archiver = w.archiverAt(w.s3.URL())
	return w
}

// archiverAt returns an archiver whose bucket is at an address.
func (w *world) archiverAt(endpoint string) *Archiver {
	bucket, err := OpenBucket(Place{URL: "s3://" + s3test.Bucket + "/penstock", Endpoint: endpoint, Region: "us-east-1"})
	if err != nil {
		w.t.Fatal(err)
	}
	return &Archiver{Pool: w.pool, Bucket: bucket, Logger: slog.New(slog.NewTextHandler(w.log, nil)), rowsMax: 150}
}

// world.fill inserts rows of events and usage into the month of old, with extreme values.
func (w *world) fill(rows int) {
	w.t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	texts := []string{"", "shop", "ünï'\\cö\"de\u202e", strings.Repeat("x", 512), "a,b\u2028c"}
	i := &ingest.Ingester{Pool: w.pool, Now: func() time.Time { return w.old }}
	var lines []feed.Line
	for n := range rows {
		text := texts[random.IntN(len(texts))]
		at := w.old.Add(-time.Duration(random.Int64N(int64(9 * 24 * time.Hour))))
		lines = append(lines,
			feed.Line{Time: at, Kind: "denied", Policy: text, Rule: fmt.Sprint("r", n%7), Client: fmt.Sprint("user:", n%50), Status: 429, Count: random.Int64N(1 << 50),
				IP: []string{"", "192.0.2.1", "192.0.2.0/24", "2001:db8::/48"}[n%4], Share: 0.25, Seconds: float64(n) / 3, Path: text, Version: "abc",
				RetryAfterMS: random.Int64N(3) * 700, LatencyUS: random.Int64N(3) * 90},
			feed.Line{Time: at, Kind: feed.KindUsage, Policy: "shop", Rule: text, Client: fmt.Sprint("user:", n), Tier: "gold",
				Admitted: random.Int64N(9), Denied: random.Int64N(3), Units: random.Int64N(1<<50) - 1<<49})
	}
	for n := 0; len(lines) > 0; n++ {
		page := lines[:min(len(lines), feed.LinesMax)]
		lines = lines[len(page):]
		if _, err := i.Take(w.t.Context(), &ingest.Batch{Feed: fmt.Sprintf("%032x", 1), Number: int64(n + 1), Node: "n", Lines: page}); err != nil {
			w.t.Fatal(err)
		}
	}
}

const (
	eventsMonth = "rate_limit_events_2019_02"
	usageMonth  = "client_usage_2019_02"
)

// world.text returns the only text in the result of a query.
func (w *world) text(query string) (text string) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), query).Scan(&text); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return text
}

// world.contents returns all rows of the two tables, as a text.
func (w *world) contents() string {
	return w.text("SELECT string_agg(t::text, E'\n' ORDER BY t::text) FROM rate_limit_events t") + "\n" +
		w.text("SELECT string_agg(t::text, E'\n' ORDER BY t::text) FROM client_usage t")
}

// world.tables returns which of the two months exist as tables.
func (w *world) tables() string {
	return w.text("SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class WHERE relname IN ('" + eventsMonth + "', '" + usageMonth + "')")
}

// world.round archives, and fails the test on an error.
func (w *world) round() (done []string) {
	w.t.Helper()
	done, err := w.archiver.Round(w.t.Context(), w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

// restoreAll restores both months.
func (w *world) restoreAll() {
	w.t.Helper()
	for _, partition := range []string{eventsMonth, usageMonth} {
		if _, err := w.archiver.Restore(w.t.Context(), partition, w.now, w.now.Add(time.Hour)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// world.objects returns the files of a month's objects.
func (w *world) objects(short string) []string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.s3.Folder, "penstock", "2019", "02", short+"-*.parquet"))
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// TestAMonthGoesToTheArchiveAndBack tests that old rows are moved to Parquet files in which another
// implementation finds the same sums, that their partition is dropped, and that a restore restores
// each row unchanged.
func TestAMonthGoesToTheArchiveAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.contents()
	sums := w.text("SELECT count(*) || ' ' || sum(events) || ' ' || count(ip) || ' ' || to_char(min(at), 'YYYY-MM-DD HH24:MI:SS.US') FROM rate_limit_events")
	usageSums := w.text("SELECT count(*) || ' ' || sum(admitted) || ' ' || sum(denied) || ' ' || sum(units) || ' ' || min(day) FROM client_usage")
	if w.round(); w.tables() != "" {
		t.Fatalf("after the archive there are %s", w.tables())
	}
	if n := len(w.objects("events")); n < 3 {
		t.Errorf("%d objects of events: the test should have several", n)
	}
	if got := w.pyarrow("events", "t.num_rows, pc.sum(t['count']), pc.count(t['ip']), min(t['time'].to_pylist()).strftime('%Y-%m-%d %H:%M:%S.%f')"); got != sums {
		t.Errorf("another reader of Parquet has %q, and the table had %q", got, sums)
	}
	if got := w.pyarrow("usage", "t.num_rows, pc.sum(t['admitted']), pc.sum(t['denied']), sum(t['units'].to_pylist()), min(t['day'].to_pylist())"); got != usageSums {
		t.Errorf("another reader of Parquet has %q, and the table had %q", got, usageSums)
	}
	for _, partition := range []string{eventsMonth, usageMonth} {
		if totals, err := w.archiver.Verify(t.Context(), partition); err != nil || totals.Rows != rowsOfWorld {
			t.Errorf("%s: %v, %v", partition, &totals, err)
		}
	}
	w.restoreAll()
	if after := w.contents(); after != before {
		t.Errorf("the rows differ after the restore: %d bytes, and %d were there", len(after), len(before))
	}
	if len(w.round()) != 0 {
		t.Error("a month that is restored is archived before its end")
	}
	w.now = w.now.Add(2 * time.Hour)
	if w.round(); w.tables() != "" {
		t.Errorf("after the end of the restore there are %s", w.tables())
	}
	if _, err := w.pool.Exec(t.Context(), "DELETE FROM archive_objects"); err != nil { // as in a database that was restored from a backup
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), "DELETE FROM archives"); err != nil {
		t.Fatal(err)
	}
	if w.restoreAll(); w.contents() != before {
		t.Error("the rows differ after a restore from the manifest alone")
	}
}

// world.pyarrow evaluates an expression over all objects of a month, and returns its values.
func (w *world) pyarrow(short, values string) string {
	w.t.Helper()
	script := "import sys, pyarrow as pa, pyarrow.parquet as pq, pyarrow.compute as pc\n" +
		"t = pa.concat_tables([pq.ParquetFile(f).read() for f in sys.argv[1:]])\nprint(" + values + ")\n"
	program := module.Path(w.t, ".cache", "pyarrow", "bin", "python")
	out, err := exec.Command(program, append([]string{"-c", script}, w.objects(short)...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("this test needs pyarrow: run make setup: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestKilledAtEachStep kills a process at each step of an archive or a restore. The process must
// leave either the partition or a verified archive, and the next process must complete the work,
// with no row lost or duplicated.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.contents()
	check := func() {
		for _, partition := range []string{eventsMonth, usageMonth} {
			present, state := strings.Contains(w.tables(), partition), w.text("SELECT coalesce(max(state), 'none') FROM archives WHERE partition = '"+partition+"'")
			if present == (state == stateDropped) {
				t.Errorf("that %s is a table is %v, and its state is %s", partition, present, state)
			}
			if present {
				continue
			}
			if _, err := w.archiver.Verify(t.Context(), partition); err != nil {
				t.Errorf("%s is dropped, and not verified: %v", partition, err)
			}
		}
	}
	// The process is killed at each step of the first month, then of the second. The race detector
	// has no effect in a process that is killed.
	steps, restoring := append(slices.Clone(stepsOfArchive), stepsOfArchive...), []string{"create", "copy", "attach", "restored"}
	steps, restoring = steps[:racescale.Fewer(len(steps))], restoring[:racescale.Fewer(len(restoring))]
	for _, step := range steps {
		w.runKilled(step, "")
		check()
	}
	w.round()
	check()
	if w.tables() != "" {
		t.Fatalf("there are %s", w.tables())
	}
	for _, short := range []string{"events", "usage"} {
		if got := w.pyarrow(short, "t.num_rows"); got != fmt.Sprint(rowsOfWorld) {
			t.Errorf("the bucket has %s rows of %s, want %d", got, short, rowsOfWorld)
		}
	}
	for _, partition := range []string{eventsMonth, usageMonth} {
		for _, step := range restoring {
			w.runKilled(step, partition)
			check()
		}
	}
	if w.restoreAll(); w.contents() != before {
		t.Error("the rows differ after the kills")
	}
}

// stepsOfArchive are the steps of archiving a month. A month has two objects, so some steps occur
// twice.
var stepsOfArchive = []string{"object", "put", "record", "put", "record", "object", "written", "verify", "manifest", "clean", "verified", "drop", "commit"}

// runKilled runs a process that is killed at a step of an archive, or of the restore of a month.
func (w *world) runKilled(step, restore string) {
	w.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childDatabase+"="+w.url, childEndpoint+"="+w.s3.URL(), childNow+"="+w.now.Format(time.RFC3339), childRestore+"="+restore,
		childStep+"="+step)
	out, err := cmd.CombinedOutput()
	if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() {
		w.t.Fatalf("the process was not killed at the step %q: %v\n%s", step, err, out)
	}
	eventually.Until(w.t, 20*time.Second, "the database has noticed the end of the process", func() bool {
		return w.text("SELECT count(*)::text"+ofThisLock) == "0"
	})
}
