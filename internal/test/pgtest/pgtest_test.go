// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestServersKeepWhatIsCommitted tests that a server still has its rows after it was stopped or
// killed and then restarted. It also tests that each new database is empty.
func TestServersKeepWhatIsCommitted(t *testing.T) {
	s := Start(t)
	run(t, s.URL(), "CREATE TABLE kept (n int)")
	for _, end := range []func(){s.Stop, s.Kill} {
		run(t, s.URL(), "INSERT INTO kept VALUES (1)")
		end()
		if _, err := pgx.Connect(context.Background(), s.URL()); err == nil {
			t.Fatal("a server that has ended accepts a connection")
		}
		s.Restart()
	}
	run(t, s.URL(), "DO $$ BEGIN ASSERT (SELECT count(*) FROM kept) = 2; END $$")
	for range 2 {
		run(t, Database(t), "CREATE TABLE kept (n int)")
	}
}

func run(t *testing.T, url, query string) {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, query); err != nil {
		t.Fatal(err)
	}
}
