// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/test/eventually"
)

// damage changes a byte in the middle of a file.
func damage(t testing.TB, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 0x40
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestABucketThatLies changes objects in the bucket. If an object changes before its partition is
// dropped, it is written again. If it changes or vanishes later, this is detected, and the object
// is not restored.
func TestABucketThatLies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, damaged := w.contents(), false
	w.archiver.step = func(step string) {
		if objects := w.objects("events"); step == "verify" && !damaged && len(objects) > 0 {
			damage(t, objects[0])
			damaged = true
		}
	}
	if w.round(); !strings.Contains(w.log.String(), "is written again") {
		t.Errorf("the log has nothing of the damaged object: %s", w.log)
	}
	w.archiver.step = nil
	if w.restoreAll(); w.contents() != before {
		t.Fatal("the rows differ after an object was damaged and written again")
	}
	w.now = w.now.Add(2 * time.Hour)
	w.round()
	events, usage := w.objects("events"), w.objects("usage")
	damage(t, events[len(events)-1])
	if err := os.Remove(usage[0]); err != nil {
		t.Fatal(err)
	}
	for _, partition := range []string{eventsMonth, usageMonth} {
		wrong := (*Wrong)(nil)
		if _, err := w.archiver.Verify(t.Context(), partition); !errors.As(err, &wrong) {
			t.Errorf("%s: the check of a damaged archive: %v", partition, err)
		}
		if _, err := w.archiver.Restore(t.Context(), partition, w.now, w.now.Add(time.Hour)); !errors.As(err, &wrong) {
			t.Errorf("%s: the restore of a damaged archive: %v", partition, err)
		}
	}
	if w.tables() != "" {
		t.Errorf("a damaged month was restored: %s", w.tables())
	}
}

// TestABucketThatIsAwayOrHangs tests that months stay in the database while the bucket does not
// answer, hangs or is slow, even if their retention time is over, and are archived when the bucket
// answers again.
func TestABucketThatIsAwayOrHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.contents()
	fails := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := w.archiver.Round(ctx, w.now); err == nil {
			t.Errorf("%s: there is no error", what)
		}
		if err := (&retain.Keeper{Pool: w.pool, Logger: w.archiver.Logger}).Round(t.Context(), w.now); err != nil {
			t.Fatal(err)
		}
		if w.contents() != before {
			t.Fatalf("%s: rows are gone", what)
		}
	}
	w.s3.Kill()
	fails("a server that is away")
	w.s3.Restart()
	w.s3.Pause()
	fails("a server that hangs")
	w.s3.Resume()
	bucket := w.archiver.Bucket
	w.archiver.Bucket = w.archiverAt(startSlowProxy(t, w.s3.Addr)).Bucket
	fails("a server that is slow")
	w.archiver.Bucket = bucket
	if w.round(); w.tables() != "" {
		t.Errorf("when the server answers again there are %s", w.tables())
	}
}

// startSlowProxy returns the address of a proxy that passes on one byte in 20 ms.
func startSlowProxy(t testing.TB, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	pass := func(from, to net.Conn) {
		one := make([]byte, 1)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := from.Read(one); err != nil {
				break
			}
			if _, err := to.Write(one); err != nil {
				break
			}
		}
		_, _ = from.Close(), to.Close()
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			go pass(c, server)
			go pass(server, c)
		}
	}()
	return "http://" + l.Addr().String()
}

// ofThisLock is the part of a query that selects the lock of the archive in this database.
const ofThisLock = " FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"

// TestOneProcessAtATime tests that a second process does nothing while one works, and that the work
// stops if the connection that holds the lock ends.
func TestOneProcessAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.archiverAt(w.s3.URL())
	var busy error
	cut := false
	w.archiver.step = func(step string) {
		if step != "record" || cut {
			return
		}
		cut = true
		_, busy = second.Round(t.Context(), w.now)
		if _, err := w.pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid)"+ofThisLock); err != nil {
			t.Error(err)
		}
		eventually.Until(t, 20*time.Second, "the lock is free", func() bool {
			return w.text("SELECT count(*)::text"+ofThisLock) == "0"
		})
		// The second process does all the work; the first one can do nothing more.
		if _, err := second.Round(t.Context(), w.now); err != nil {
			t.Error(err)
		}
	}
	before := w.contents()
	if _, err := w.archiver.Round(t.Context(), w.now); err == nil {
		t.Error("a process that has lost the lock has no error")
	}
	if !errors.Is(busy, ErrBusy) {
		t.Errorf("a second process: %v", busy)
	}
	w.archiver.step = nil
	w.round()
	if w.restoreAll(); w.contents() != before {
		t.Error("the rows differ after two processes")
	}
}

// forget removes the name of a client.
func forget(ctx context.Context, w *world, client string) error {
	name, err := ledger.Name(client)
	if err != nil {
		return err
	}
	_, err = (&ledger.Ledger{Pool: w.pool}).Forget(ctx, ledger.Actor{Name: "test"}, name, "asked for it")
	return err
}

// TestForgottenClientsAreNotInTheArchive forgets one client while a month is written, and another
// one while a month is restored. The first client must then not be in the archive, and the second
// must be removed from it.
func TestForgottenClientsAreNotInTheArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forget := func(client string) {
		if err := forget(t.Context(), w, client); err != nil {
			t.Error(err)
		}
	}
	forgotten := false
	w.archiver.step = func(step string) {
		if step == "drop" && !forgotten && len(w.objects("events")) > 0 {
			forget("user:7")
			forgotten = true
		}
	}
	w.round()
	w.archiver.step = nil
	const count = "sum([1 for c in t['client'].to_pylist() if c == 'user:7']), sum([1 for c in t['client'].to_pylist() if c == 'user:8'])"
	if got := w.pyarrow("events", count); got != "0 14" {
		t.Errorf("the archive has the forgotten client, and another: %s rows, want 0 14", got)
	}
	w.restoreAll()
	forget("user:8")
	w.now = w.now.Add(2 * time.Hour)
	if w.round(); w.tables() != "" {
		t.Errorf("there are %s", w.tables())
	}
	if got := w.pyarrow("events", count); got != "0 0" {
		t.Errorf("the archive has the forgotten clients: %s rows", got)
	}
	if got := w.pyarrow("events", "t.num_rows"); got != "700" {
		t.Errorf("the archive has %s rows", got)
	}
}

// TestForgettingWhileAMonthBegins forgets a client while the archive begins to write a month, for
// the first time or again. It tests that the client is not in the archive of the month.
func TestForgettingWhileAMonthBegins(t *testing.T) {
	t.Parallel()
	for _, begin := range []string{"begin", "anew"} {
		w := newWorld(t)
		if begin == "anew" { // as in a database that was restored from a backup
			w.round()
			w.restoreAll()
			w.exec("UPDATE archives SET state = 'dropped', until = NULL")
		}
		// The forgetting stops after it has marked the months.
		blocker, err := w.pool.Begin(t.Context())
		if err == nil {
			_, err = blocker.Exec(t.Context(), "LOCK TABLE ONLY client_denials IN ROW EXCLUSIVE MODE")
		}
		if err != nil {
			t.Fatal(err)
		}
		forgotten, begun, went := make(chan error, 1), false, make(chan struct{})
		w.archiver.step = func(step string) {
			switch {
			case step == begin && !begun:
				begun = true
				go func() { forgotten <- forget(t.Context(), w, "user:7") }()
				eventually.Until(t, 20*time.Second, "the forgetting waits", func() bool {
					return w.text("SELECT count(*)::text FROM pg_locks WHERE relation = 'client_denials'::regclass AND NOT granted") != "0"
				})
			case step == "put" && went != nil: // the archiver has read the rows
				close(went)
				went = nil
				if err := <-forgotten; err != nil {
					t.Error(err)
				}
			}
		}
		read, done := went, make(chan error, 1)
		go func() { _, err := w.archiver.Round(t.Context(), w.now); done <- err }()
		eventually.Until(t, 60*time.Second, "the archive waits or goes on", func() bool {
			select {
			case <-read:
				return true
			default:
				return w.text("SELECT count(*)::text"+ofThisLock+" AND NOT granted") != "0"
			}
		})
		if err := errors.Join(blocker.Rollback(t.Context()), <-done); err != nil {
			t.Fatal(err)
		}
		if got := w.pyarrow("events", "t.num_rows, t['client'].to_pylist().count('user:7')"); got != "700 0" {
			t.Errorf("%s: the archive has the rows, and those of the forgotten client: %s, want 700 0", begin, got)
		}
	}
}

// TestPlaces tests that an address that would send rows unencrypted, or that is invalid, is an
// error with a remedy.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		place Place
		want  string
	}{
		{Place{URL: "events/penstock"}, "write s3://BUCKET/PREFIX"},
		{Place{URL: "s3://events", Endpoint: "minio:9000"}, "write https://HOST"},
		{Place{URL: "s3://events", Endpoint: "http://minio:9000"}, "without encryption"},
		{Place{URL: "s3://events", Endpoint: "https://minio:9000/x"}, "write https://HOST"},
	} {
		if _, err := OpenBucket(c.place); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.place, err, c.want)
		}
	}
}

// BenchmarkAMonth measures how fast a month is archived, until its partition is dropped, and how
// many bytes a row has in the archive.
func BenchmarkAMonth(b *testing.B) {
	const rows = 500_000
	w := newWorld(b)
	w.archiver.rowsMax = 0
	for b.Loop() {
		b.StopTimer()
		if _, err := w.pool.Exec(b.Context(), "TRUNCATE archive_objects, archives"); err != nil {
			b.Fatal(err)
		}
		if err := (&retain.Keeper{Pool: w.pool, Logger: w.archiver.Logger}).Round(b.Context(), w.now); err != nil {
			b.Fatal(err)
		}
		if _, err := w.pool.Exec(b.Context(), "SET LOCAL statement_timeout = 0; DROP TABLE IF EXISTS "+eventsMonth+"; CREATE TABLE "+eventsMonth+
			" PARTITION OF rate_limit_events FOR VALUES FROM ('2019-02-01') TO ('2019-03-01'); INSERT INTO rate_limit_events (at, kind, policy, version, rule, limited, "+
			"decision, status, client, tier, ip, method, path, state, reason, node, seconds, share, events) SELECT '2019-02-01'::timestamptz + n * interval '4 seconds', "+
			"'denied', 'shop', '0123456789ab', 'rule-' || n % 20, '100/1m', 'denied', 429, 'header.x-user:user-' || hashint8(n) % 10000, 'free', "+
			"('192.0.2.' || n % 256)::inet, 'GET', '/api/v1/items', '', '', 'web-' || n % 20, 0, 1, 1 + n % 9 FROM generate_series(1, "+decimal(rows)+") n",
			pgx.QueryExecModeSimpleProtocol); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := w.archiver.alone(b.Context(), func(ctx context.Context) error {
			m, err := monthOf(eventsMonth)
			if err != nil {
				return err
			}
			return w.archiver.archive(ctx, m, w.now)
		}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		months, err := w.archiver.List(b.Context())
		if err != nil || months[0].Rows != rows {
			b.Fatal(months, err)
		}
		b.ReportMetric(float64(months[0].Bytes)/rows, "B/row")
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*rows/b.Elapsed().Seconds(), "rows/s")
}
