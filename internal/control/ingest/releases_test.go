// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/eventually"
)

var updateLines = flag.Bool("update", false, "write the lines that this release sends to testdata/releases/lines.ndjson")

// releasesFolder has a folder for each earlier release, named by its commit. It holds the lines
// that a node of the release sent, and the rows that its control plane stored.
const releasesFolder = "testdata/releases"

// recordedAt is a time after that of every line in the recorded batches.
var recordedAt = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// recordedTables are the tables whose rows are recorded, without the columns whose values differ
// from run to run.
var recordedTables = []string{"rate_limit_events", "client_usage", "client_denials", "rate_limit_metrics", "rate_limit_latencies", "client_minutes"}

// recorded holds, by table, the rows that a release stored, with the columns that the release knew.
type recorded map[string][]map[string]any

// readRecorded reads the rows that a release stored from its folder.
func readRecorded(t *testing.T, commit, name string) (rows recorded) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(releasesFolder, commit, name))
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil || len(rows["rate_limit_events"]) == 0 || len(rows["client_usage"]) == 0 {
		t.Fatalf("the recording of %s has %d tables, %v", commit, len(rows), err)
	}
	return rows
}

// releases returns the commits of the earlier releases in releasesFolder.
func releases(t *testing.T) (commits []string) {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(releasesFolder, "*", "spool"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no release is recorded: %v", err)
	}
	for _, folder := range folders {
		commits = append(commits, filepath.Base(filepath.Dir(folder)))
	}
	return commits
}

// stored returns the rows of the database as texts. It includes only the tables and the columns
// that want has. Rows whose numbers are all 0 are left out, because a release stores zeros for a
// line that it does not understand.
func stored(t *testing.T, pool *pgxpool.Pool, want recorded) map[string][]string {
	t.Helper()
	have := map[string][]string{}
	for _, table := range recordedTables {
		if len(want[table]) == 0 {
			continue
		}
		rows, err := pool.Query(t.Context(), "SELECT to_jsonb(t) FROM "+table+" t")
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[map[string]any])
		if err != nil {
			t.Fatal(err)
		}
		have[table] = textsOf(all, want[table][0])
	}
	return have
}

// textsOf returns the rows as sorted texts, with only the columns that the example has.
func textsOf(rows []map[string]any, example map[string]any) (texts []string) {
	for _, row := range rows {
		text, numbers := "", false
		for _, column := range slices.Sorted(maps.Keys(example)) {
			value := row[column]
			number, isNumber := value.(float64)
			numbers = numbers || isNumber && number != 0 && column != "bucket"
			if column == "at" { // PostgreSQL writes fractions of a second only if there are any
				at, err := time.Parse("2006-01-02T15:04:05.999999-07:00", fmt.Sprint(value))
				if err == nil {
					value = at.UnixMicro()
				}
			}
			text += fmt.Sprint(column, "=", value, " ")
		}
		if numbers {
			texts = append(texts, text)
		}
	}
	slices.Sort(texts)
	return texts
}

// expectRows fails the test unless the database has the same rows as the release stored.
func expectRows(t *testing.T, pool *pgxpool.Pool, commit string, want recorded) {
	t.Helper()
	have := stored(t, pool, want)
	for table, rows := range want {
		if len(rows) == 0 {
			continue
		}
		if wanted := textsOf(rows, rows[0]); !slices.Equal(have[table], wanted) {
			t.Errorf("%s has\n%s\nand the release %s stored\n%s", table, strings.Join(have[table], "\n"), commit, strings.Join(wanted, "\n"))
		}
	}
}

// nodeOf starts a server that passes the batches of feeds to the ingester, as a control plane does.
// The counter named taken holds the number of batches that were stored so far.
func nodeOf(t *testing.T, i *Ingester) (url string, taken *atomic.Int64) {
	t.Helper()
	taken = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		content, err := Read(body, r.Header.Get("Content-Encoding") == "gzip")
		if err != nil || content.Unread+content.Altered != 0 {
			t.Errorf("%s: %+v, %v", r.URL, content, err)
			return
		}
		b := Batch{Node: "n", Lines: content.Lines}
		if _, err := fmt.Sscanf(r.URL.Path, "/v1/batches/%32s", &b.Feed); err != nil {
			t.Error(err)
		}
		if _, err := fmt.Sscanf(strings.TrimPrefix(r.URL.Path, "/v1/batches/"+b.Feed), "/%d", &b.Number); err != nil {
			t.Error(err)
		}
		if _, err := i.Take(r.Context(), &b); err != nil {
			t.Error(err)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		taken.Add(1)
	}))
	t.Cleanup(server.Close)
	return server.URL, taken
}

// TestBatchesOfEarlierReleases tests that a node of this release sends the batches that an earlier
// release has left in its spool. The control plane of this release must store the same rows for
// them as the control plane of the earlier release did.
func TestBatchesOfEarlierReleases(t *testing.T) {
	t.Parallel()
	for _, commit := range releases(t) {
		t.Run(commit, func(t *testing.T) {
			t.Parallel()
			spool := filepath.Join(t.TempDir(), "spool")
			if err := os.CopyFS(spool, os.DirFS(filepath.Join(releasesFolder, commit, "spool"))); err != nil {
				t.Fatal(err)
			}
			batches, err := filepath.Glob(filepath.Join(spool, "*.batch"))
			if err != nil || len(batches) == 0 {
				t.Fatalf("the recording has no batches: %v", err)
			}
			pool := open(t, migrated(t), recordedAt)
			url, taken := nodeOf(t, &Ingester{Pool: pool, Now: func() time.Time { return recordedAt }})
			f := openFeed(t, url, spool, nil)
			eventually.Until(t, patience, "all batches are sent", func() bool { return taken.Load() == int64(len(batches)) })
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			expectRows(t, pool, commit, readRecorded(t, commit, "node.json"))
		})
	}
}

const patience = 30 * time.Second

// openFeed opens a feed that keeps its unsent batches in the folder spool.
func openFeed(t *testing.T, url, spool string, m *meter.Meter) *feed.Feed {
	t.Helper()
	f, err := feed.Open(feed.Options{Target: controlcall.Target{URL: url, Token: func() (string, error) { return "pst_x", nil }}, Folder: spool, Meter: m,
		Node: "node-1", Region: func() string { return "eu" }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// linesSent returns the lines that a node of this release sends for one of everything: each kind of
// event, usage, latencies and the uses of API keys, all at the same time.
func linesSent(t *testing.T) string {
	t.Helper()
	m, spool := meter.New(), filepath.Join(t.TempDir(), "spool")
	f := openFeed(t, "http://127.0.0.1:1", spool, m) // nobody listens there
	at := recordedAt.Add(-24 * time.Hour)
	denied := events.Event{Time: at, Kind: events.KindDenied, Policy: "shop", Version: "1685a0ccd389", Rule: "api", Limit: "100/1m", Decision: "denied",
		Client: "user:ann", Tier: "gold", IP: "192.0.2.7", Method: "GET", Path: "/api/*", Node: "node-1", Region: "eu", Status: 429, Count: 30,
		RetryAfterMS: 600, LatencyUS: 48}
	admitted := denied
	admitted.Kind, admitted.Decision, admitted.Status, admitted.Share, admitted.RetryAfterMS = events.KindAdmitted, "allowed", 200, 0.001, 0
	if _, err := f.Write([]events.Event{denied, admitted,
		{Time: at, Kind: events.KindDegraded, State: "ended", Reason: "redis", Node: "node-1", Region: "eu", Seconds: 8.127, Count: 9},
		{Time: at, Kind: events.KindDropped, Reason: "rate", Node: "node-1", Region: "eu", Count: 5}}); err != nil {
		t.Fatal(err)
	}
	m.Count(&meter.Key{Policy: "shop", Rule: "api", Tier: "gold", Kind: "user", Client: "ann"}, meter.Sum{Admitted: 7, Denied: 3, Units: 14})
	m.Count(&meter.Key{Policy: "shop", Rule: "priced", Kind: "user", Client: "Zoë"}, meter.Sum{Admitted: 1, Units: -4})
	m.Count(&meter.Key{Policy: "shop", Rule: "api"}, meter.Sum{Denied: 2})
	for n := range int64(10) {
		m.CountLatency(&meter.LatencyKey{Policy: "shop", Rule: "api", Endpoint: "/api/*"}, 12*n, n >= 7)
	}
	m.NoteKey(sha256.Sum256([]byte("a key")), at.UnixMicro())
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(spool, "*.batch"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, file := range files {
		packed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")...)
		lines[len(lines)-1] += "\n"
	}
	slices.Sort(lines)
	return regexp.MustCompile(`"time":"[^"]*"`).ReplaceAllString(strings.Join(lines, ""), `"time":"`+at.Format(time.RFC3339)+`"`)
}

// TestEarlierReleasesReadTheseLines tests that this release sends the same lines as those with
// which the control planes of earlier releases were recorded. It also tests that those control
// planes stored the same rows as this release, except for columns and tables that they did not
// know.
func TestEarlierReleasesReadTheseLines(t *testing.T) {
	t.Parallel()
	lines, file := linesSent(t), filepath.Join(releasesFolder, "lines.ndjson")
	if *updateLines {
		if err := os.WriteFile(file, []byte(lines), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recordedLines, err := os.ReadFile(file)
	if err != nil || string(recordedLines) != lines {
		t.Fatalf("this release sends\n%s\nand earlier releases were recorded with\n%s\n%v: write them with -update, and record the releases again, as "+
			"testdata/releases/README.md says", lines, recordedLines, err)
	}
	content, err := Read([]byte(lines), false)
	if err != nil || content.Unread+content.Altered != 0 || len(content.Lines) != strings.Count(lines, "\n") {
		t.Fatalf("%+v, %v", content, err)
	}
	pool := open(t, migrated(t), recordedAt)
	if _, err := (&Ingester{Pool: pool, Now: func() time.Time { return recordedAt }}).Take(t.Context(), &Batch{Feed: feedName(1), Number: 1, Lines: content.Lines}); err != nil {
		t.Fatal(err)
	}
	for _, commit := range releases(t) {
		expectRows(t, pool, commit, readRecorded(t, commit, "lines.json"))
	}
}
