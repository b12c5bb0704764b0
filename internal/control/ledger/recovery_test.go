// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/pgtest"
)

// openAt returns a ledger of the database of a server.
func openAt(t *testing.T, s *pgtest.Server) *Ledger {
	t.Helper()
	pool, err := database.Open(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := database.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return &Ledger{Pool: pool}
}

// TestADatabaseIsRecoveredToAnInstant follows the drill of the guide: a base backup, the archive of
// the log, a mistake, the loss of the server, and a recovery to the instant before the mistake. The
// recovered database has all earlier commits and a whole audit trail, and lacks the mistake.
func TestADatabaseIsRecoveredToAnInstant(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	archive := server.Archive()
	l := openAt(t, server)
	put := func(client string, r *directory.Record) {
		t.Helper()
		if _, err := l.Replace(t.Context(), ops, client, r, "a test", If{}); err != nil {
			t.Fatal(err)
		}
	}
	gold := &directory.Record{Tier: "gold"}
	mustTier(t, l, "gold")
	put("user:before", gold)
	base := server.BaseBackup()
	put("user:after", gold)
	verified, broken, err := l.Verify(t.Context())
	if err != nil || broken != "" {
		t.Fatalf("%v %s", err, broken)
	}
	var instant time.Time
	if err := l.Pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&instant); err != nil {
		t.Fatal(err)
	}
	put("user:before", nil)
	put("user:mistake", gold)
	l.Pool.Close()
	server.EndArchive()

	l = openAt(t, server.Recover(base, archive, instant))
	for _, client := range []string{"user:before", "user:after"} {
		if r, err := l.Client(t.Context(), client); err != nil || r.Record.Tier != "gold" {
			t.Errorf("%s: %v", client, err)
		}
	}
	if _, err := l.Client(t.Context(), "user:mistake"); !errors.Is(err, ErrNone) {
		t.Errorf("what was written after the instant: %v", err)
	}
	again, broken, err := l.Verify(t.Context())
	if err != nil || broken != "" || again.Changes != verified.Changes || string(again.Hash) != string(verified.Hash) {
		t.Errorf("the audit trail has %d changes, had %d: %v %s", again.Changes, verified.Changes, err, broken)
	}
	put("user:next", gold) // the recovered database takes writes
	if _, broken, err := l.Verify(t.Context()); err != nil || broken != "" {
		t.Errorf("after the next change: %v %s", err, broken)
	}
}
