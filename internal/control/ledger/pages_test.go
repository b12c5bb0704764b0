// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// TestPagesHaveWhatSingleClientsHave tests that pages of any size have each client once, in the
// order of their names, with the same record as when the client is read alone.
func TestPagesHaveWhatSingleClientsHave(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustTier(t, l, "gold")
	until := start.Add(time.Hour)
	limits := map[string]directory.Limits{"api": {Limits: []string{"500/1h", "9/1s"}, Until: until, Reason: "until Friday"}, "*": {Limits: []string{"unlimited"}}}
	grants := []directory.Grant{{Rule: "b", Units: 7, Window: "month", At: start, Reason: "May"}, {Rule: "a", Units: 500, At: start}}
	records := []*directory.Record{
		{Tier: "gold", Tenant: "t", Note: "n"}, {Limits: limits}, {Block: &directory.Mark{Until: until, Reason: "abuse"}}, {Exempt: &directory.Mark{}},
		{Grants: grants}, {Tier: "gold", Limits: limits, Grants: grants, Block: &directory.Mark{}, Exempt: &directory.Mark{Until: until}},
	}
	var names []policy.ClientName
	for i := range 4 * len(records) {
		name := policy.ClientName{Kind: []string{"user", "tenant", "header.x-user"}[i%3], ID: fmt.Sprint("Ö", i, "-")}
		if _, err := l.Replace(t.Context(), ops, name.String(), records[i%len(records)], "a test", If{Absent: true}); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	pooled, err := l.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	alone, err := ClientsOf(t.Context(), pooled.Conn(), names)
	if err != nil || len(alone) != len(names) {
		t.Fatalf("%d of %d clients are read: %v", len(alone), len(names), err)
	}
	for _, size := range []int{1, 2, 7, len(names), len(names) + 1} {
		read := 0
		for after := (policy.ClientName{}); ; {
			page, err := ClientsAfter(t.Context(), pooled.Conn(), after, size)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page {
				after = page[i].Name()
				if diff := cmp.Diff(alone[after], &page[i], cmpopts.IgnoreUnexported(Client{})); diff != "" {
					t.Errorf("in a page of %d, %s differs: %s", size, after, diff)
				}
			}
			if read += len(page); len(page) < size {
				break
			}
		}
		if read != len(names) {
			t.Errorf("pages of %d have %d clients, want %d", size, read, len(names))
		}
	}
}

// TestAPageReadsItsPartOfEachIndex: a page with a few of many clients does not read the indexes of
// the other tables to their ends.
func TestAPageReadsItsPartOfEachIndex(t *testing.T) {
	t.Parallel()
	l := open(t)
	const clients, size, blocksMax = 30_000, 100, 40
	for _, sql := range []string{
		fmt.Sprintf("INSERT INTO clients (kind, id, revision, updated_at) SELECT 'user', 'c' || i, 1, now() FROM generate_series(1, %d) i", clients),
		"INSERT INTO overrides (kind, id, rule, limits, reason) SELECT kind, id, 'api', '{7/1h}', '' FROM clients",
		"ANALYZE clients, overrides",
	} {
		if _, err := l.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pooled, err := l.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	blocks := func() (n int) {
		const sql = "SELECT pg_stat_force_next_flush() IS NULL, (SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'overrides_pkey')"
		for range 2 { // the first query writes the statistics of those before it
			if err := pooled.QueryRow(t.Context(), sql).Scan(nil, &n); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	before := blocks()
	page, err := ClientsAfter(t.Context(), pooled.Conn(), policy.ClientName{Kind: "user", ID: "c1"}, size)
	if err != nil || len(page) != size || len(page[size-1].Record.Limits) != 1 {
		t.Fatalf("a page of %d has %d clients: %v", size, len(page), err)
	}
	if read := blocks() - before; read == 0 || read > blocksMax {
		t.Errorf("a page of %d of %d clients read %d blocks of the index, want 1 to %d", size, clients, read, blocksMax)
	}
}
