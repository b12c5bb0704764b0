// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/feed"
)

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// createKeys creates API keys. The text of each key is also its name.
func createKeys(t *testing.T, pool *pgxpool.Pool, keys ...string) *ledger.Ledger {
	t.Helper()
	l := &ledger.Ledger{Pool: pool}
	for _, key := range keys {
		if _, err := l.EditKeys(t.Context(), ledger.Actor{Name: "test"}, directory.KeyEdit{Action: directory.KeyCreate, Name: key, Hash: hashOf(key),
			Reason: "a test", Record: &directory.KeyRecord{Name: key, Client: "user:u"}}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func used(at time.Time, keys ...string) feed.Line {
	l := feed.Line{Time: at, Kind: feed.KindUsage, Latency: [][3]int64{{-1, 0, 0}}}
	for _, key := range keys {
		l.Keys = append(l.Keys, hashOf(key))
	}
	return l
}

// TestUsesOfKeys tests that the latest use of each key counts, whatever the order in which batches
// arrive, and that made-up keys get no rows and add no usage. It also tests that a clock that is
// ahead cannot set the last use of a key to more than a minute from now.
func TestUsesOfKeys(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	pool := open(t, migrated(t), now)
	l := createKeys(t, pool, "a", "b", "c", "d")
	i := &Ingester{Pool: pool, Now: func() time.Time { return now }}
	for n, lines := range [][]feed.Line{
		{used(now.Add(-time.Hour), "a", "b", "made up"), used(now.Add(-time.Minute), "a")},
		{used(now.Add(-2*time.Hour), "a"), used(now.Add(-30*time.Minute), "b"), {Time: now, Kind: feed.KindUsage, Client: "user:u", Admitted: 7}},
		{used(now.Add(time.Hour), "c")},
	} {
		for range 2 {
			if _, err := i.Take(t.Context(), &Batch{Feed: feedName(n), Number: 1, Lines: append([]feed.Line(nil), lines...)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := l.Keys(t.Context(), "", nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]time.Time{"a": now.Add(-time.Minute), "b": now.Add(-30 * time.Minute), "c": now.Add(AheadMax)}
	for _, k := range found {
		if at, ok := want[k.Record.Name]; ok != (k.LastUsedAt != nil) || ok && !at.Equal(*k.LastUsedAt) {
			t.Errorf("%s was used at %v, want %v", k.Record.Name, k.LastUsedAt, at)
		}
	}
	for query, want := range map[string]int64{"SELECT count(*) FROM api_key_uses": 3, "SELECT count(*) FROM client_usage": 1,
		"SELECT sum(admitted) FROM client_usage": 7, "SELECT count(*) FROM rate_limit_latencies": 0} {
		if n := number(t, pool, query); n != want {
			t.Errorf("%s: %d, want %d", query, n, want)
		}
	}
	if _, err := l.EditKeys(t.Context(), ledger.Actor{Name: "test"}, directory.KeyEdit{Action: directory.KeyRevoke, Name: "a", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	if named, err := l.KeysNamed(t.Context(), "a"); err != nil || named[0].LastUsedAt == nil {
		t.Errorf("a revoked key was used at %+v, %v", named, err)
	}
}

// TestKeysAreForgottenWhileTheyAreUsed tests that batches are stored while the keys they report are
// being removed, and that no use of a removed key is kept.
func TestKeysAreForgottenWhileTheyAreUsed(t *testing.T) {
	t.Parallel()
	pool := open(t, migrated(t), time.Now())
	i := &Ingester{Pool: pool}
	var keys []string
	for n := range 40 {
		keys = append(keys, fmt.Sprint("key ", n))
	}
	l := createKeys(t, pool, keys...)
	var group sync.WaitGroup
	for f := range 4 {
		group.Go(func() {
			for n := range int64(20) {
				b := &Batch{Feed: feedName(f), Number: n + 1, Lines: []feed.Line{used(time.Now(), keys...), {Time: time.Now(), Kind: feed.KindUsage, Admitted: 1}}}
				if _, err := i.Take(t.Context(), b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, action := range []directory.KeyAction{directory.KeyRevoke, directory.KeyForget} {
		for _, key := range keys {
			if _, err := l.EditKeys(t.Context(), ledger.Actor{Name: "test"}, directory.KeyEdit{Action: action, Name: key, Reason: "a test"}); err != nil {
				t.Error(err)
			}
		}
	}
	group.Wait()
	if n := number(t, pool, "SELECT count(*) FROM api_key_uses"); n != 0 {
		t.Errorf("%d uses of removed keys", n)
	}
	if n := number(t, pool, "SELECT sum(admitted) FROM client_usage"); n != 80 {
		t.Errorf("%d requests, want 80", n)
	}
}

// TestLinesOfKeysAreChecked tests that a line is left out if one of its keys is not a SHA-256. It
// also tests that a control plane that does not know the uses of keys adds up nothing from such
// lines.
func TestLinesOfKeysAreChecked(t *testing.T) {
	t.Parallel()
	lines := ""
	for _, keys := range [][]string{{hashOf("a")}, {"pk_secret"}, {hashOf("a")[:62]}, {hashOf("a"), ""}} {
		text, err := json.Marshal(feed.Line{Time: time.Now(), Kind: feed.KindUsage, Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		lines += string(text) + "\n"
	}
	content, err := Read([]byte(lines), false)
	if err != nil || len(content.Lines) != 1 || content.Unread != 3 {
		t.Fatalf("%+v, %v", content, err)
	}
	known := used(time.Now(), "a")
	known.Keys = nil // as a release that does not know the field reads it
	if s := sumsOf([]feed.Line{known}, nil); len(s.usage)+len(s.latencies)+len(s.keys)+len(s.metrics)+len(s.minutes) != 0 {
		t.Errorf("an earlier release adds up %+v", s)
	}
}
