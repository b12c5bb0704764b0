// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var (
	ops   = Actor{"ops", "192.0.2.1"}
	start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
)

// open returns a ledger of an empty database. Its time is start.
func open(t *testing.T) *Ledger {
	t.Helper()
	pool, err := database.Open(t.Context(), pgtest.Migrated(t, database.Open, database.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &Ledger{Pool: pool, Now: func() time.Time { return start }}
}

func mustEdit(t *testing.T, l *Ledger, e directory.Edit) *Changed {
	t.Helper()
	e.Reason = "a test"
	changed, err := l.Edit(t.Context(), ops, e, If{})
	if err != nil {
		t.Fatalf("%s: %v", e.String(), err)
	}
	return changed
}

func mustTier(t *testing.T, l *Ledger, name string) {
	t.Helper()
	if _, err := l.PutTier(t.Context(), ops, Tier{Tier: name}, "a test"); err != nil {
		t.Fatal(err)
	}
}

// TestRowsAndRecordSayTheSame tests that each record is read back as it was written, and has the
// text that is published to Redis.
func TestRowsAndRecordSayTheSame(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustTier(t, l, "gold")
	until := start.Add(time.Hour + 123456789*time.Nanosecond)
	for i, r := range []*directory.Record{
		{Tier: "gold"},
		{Tenant: "t_1", Note: `"quoted" 'text' \ and ☃`},
		{Block: &directory.Mark{Until: until, Reason: "abuse"}},
		{Grants: []directory.Grant{{Rule: "b", Units: 7, Window: "month", At: start.Add(1234567 * time.Microsecond), Reason: "the import of May"},
			{Rule: "a", Units: 500, At: start.In(time.FixedZone("", 3600))}, {Rule: "b", Units: 7, Window: "month", At: start}}},
		{Block: &directory.Mark{}, Exempt: &directory.Mark{Until: until.In(time.FixedZone("", 3600))}},
		{Limits: map[string]directory.Limits{"api": {Limits: []string{"500/1h", "9/1s"}, Until: until, Reason: "until Friday"}, "*": {Limits: []string{"unlimited"}}}},
		{Tier: "gold", Tenant: "t", Note: "n", Block: &directory.Mark{Reason: "r"}, Exempt: &directory.Mark{Reason: "r"},
			Limits: map[string]directory.Limits{"a": {Limits: []string{"1/1s"}}, "b": {Limits: []string{"1/1s"}}}},
	} {
		name := fmt.Sprintf("user:u_%d", i)
		changed, err := l.Replace(t.Context(), ops, name, r, "a test", If{Absent: true})
		if err != nil {
			t.Fatal(err)
		}
		read, err := l.Client(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(changed.After, read.Record); diff != "" || read.Revision != changed.Revision {
			t.Errorf("%s was written and is read, at revision %d and %d: %s", name, changed.Revision, read.Revision, diff)
		}
		if string(read.Record.Text()) != string(changed.After.Text()) {
			t.Errorf("%s has the text %s, was %s", name, read.Record.Text(), changed.After.Text())
		}
		if _, err := directory.ParseRecord(read.Record.Text()); err != nil {
			t.Error(err)
		}
		if changed, err = l.Replace(t.Context(), ops, name, nil, "a test", If{Revision: changed.Revision}); err != nil || changed.After != nil {
			t.Errorf("removing %s: %v", name, err)
		}
		if _, err = l.Client(t.Context(), name); !errors.Is(err, ErrNone) {
			t.Errorf("%s was removed: %v", name, err)
		}
	}
}

// TestWritesThatAreNotValidChangeNothing tests that each invalid write returns an Invalid with its
// place, and adds no change.
func TestWritesThatAreNotValidChangeNothing(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustTier(t, l, "gold")
	long := strings.Repeat("x", 501)
	for _, c := range []struct {
		place, text string
		edit        directory.Edit
	}{
		{"client", "has no form KIND:ID", directory.Edit{Client: "bob", Action: directory.ActionBlock}},
		{"client", "unknown kind", directory.Edit{Client: "usr:bob", Action: directory.ActionBlock}},
		{"client", "neither an address nor a network", directory.Edit{Client: "ip:300.0.0.1", Action: directory.ActionBlock}},
		{"client", "control character", directory.Edit{Client: "user:a\x00b", Action: directory.ActionBlock}},
		{"client", "not UTF-8", directory.Edit{Client: "user:\xff", Action: directory.ActionBlock}},
		{"tier", `there is no tier "golden"; there are: ["gold"]`, directory.Edit{Client: "user:bob", Action: directory.ActionSetTier, Tier: "golden"}},
		{"", "limits for rule", directory.Edit{Client: "user:bob", Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"5/bogus"}}},
		{"", "is not blocked", directory.Edit{Client: "user:bob", Action: directory.ActionUnblock}},
		{"", "not in the future", directory.Edit{Client: "user:bob", Action: directory.ActionBlock, Until: start}},
		{"", "note", directory.Edit{Client: "user:bob", Action: directory.ActionNote, Note: long}},
		{"", "window of a grant", directory.Edit{Client: "user:bob", Action: directory.ActionGrant, Rule: "api", Units: 5, Window: "bogus"}},
		{"", "units are out of bounds", directory.Edit{Client: "user:bob", Action: directory.ActionGrant, Rule: "api", Units: -5}},
		{"", "has no grant for rule", directory.Edit{Client: "user:bob", Action: directory.ActionUngrant, Rule: "api"}},
	} {
		c.edit.Reason = "a test"
		_, err := l.Edit(t.Context(), ops, c.edit, If{})
		invalid := (*Invalid)(nil)
		if !errors.As(err, &invalid) || invalid.Place != c.place || !strings.Contains(invalid.Text, c.text) {
			t.Errorf("%+v: %v; want %q: %q", c.edit, err, c.place, c.text)
		}
	}
	for _, reason := range []string{"", long, "a\nb", "a\u009b2J"} {
		if _, err := l.Edit(t.Context(), ops, directory.Edit{Client: "user:bob", Action: directory.ActionBlock, Reason: reason}, If{}); err == nil {
			t.Errorf("the reason %.20q is taken", reason)
		}
	}
	if changes, err := l.History(t.Context(), "", "", 0, 10); err != nil || len(changes) != 1 {
		t.Errorf("%d changes, %v; want only that of the tier", len(changes), err)
	}
}

// TestReplacementsEndInTheFuture tests that a new record must not have an end in the past unless
// the replaced record has the same end, and that the error contains the current time and the place.
func TestReplacementsEndInTheFuture(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustEdit(t, l, directory.Edit{Client: "user:ann", Action: directory.ActionBlock, Until: start.Add(time.Minute)})
	l.Now = func() time.Time { return start.Add(time.Hour) }
	past := start.Add(time.Hour)
	for place, record := range map[string]*directory.Record{
		"record.block":  {Block: &directory.Mark{Until: past}},
		"record.exempt": {Exempt: &directory.Mark{Until: past}},
		"record.limits": {Limits: map[string]directory.Limits{"api": {Limits: []string{"5/1h"}, Until: past}}},
		"record.note":   {Note: "a\u009b2J"},
		"record.grants": {Grants: []directory.Grant{{Rule: "api", Units: 5, At: start, Reason: "a\u009b2J"}}},
	} {
		_, err := l.Replace(t.Context(), ops, "user:ann", record, "a test", If{})
		invalid := (*Invalid)(nil)
		if !errors.As(err, &invalid) || invalid.Place != place || place != "record.note" && place != "record.grants" && !strings.Contains(invalid.Text, "it is 2026-11-23T13:00:00Z now") {
			t.Errorf("%s: %v", place, err)
		}
	}
	kept := &directory.Record{Block: &directory.Mark{Until: start.Add(time.Minute), Reason: "a test"}, Note: "more"}
	if _, err := l.Replace(t.Context(), ops, "user:ann", kept, "a test", If{}); err != nil {
		t.Errorf("a record that keeps what has ended: %v", err)
	}
}

// TestOneOfTwoWins tests that of several conditional writes to the same revision, exactly one
// succeeds.
func TestOneOfTwoWins(t *testing.T) {
	t.Parallel()
	l := open(t)
	first := mustEdit(t, l, directory.Edit{Client: "user:bob", Action: directory.ActionNote, Note: "0"})
	var group sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		group.Go(func() {
			note := fmt.Sprint(i)
			_, results[i] = l.Patch(context.Background(), ops, "user:bob", Part{Note: &note}, "a test", If{Revision: first.Revision})
		})
	}
	group.Wait()
	won := 0
	for _, err := range results {
		if err == nil {
			won++
		} else if !errors.Is(err, ErrChanged) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d writes of one revision were made", won, len(results))
	}
	mustEdit(t, l, directory.Edit{Client: "user:bob", Action: directory.ActionForget})
	mustEdit(t, l, directory.Edit{Client: "user:bob", Action: directory.ActionBlock})
	if _, err := l.Replace(t.Context(), ops, "user:bob", nil, "a test", If{Revision: first.Revision}); !errors.Is(err, ErrChanged) {
		t.Errorf("a client that was forgotten and made anew has the old revision: %v", err)
	}
}

// TestTheAuditTrailShowsWhatWasDoneToIt tests that concurrent writes make an intact chain, and that
// an entry that was altered, removed or added in the database is detected.
func TestTheAuditTrailShowsWhatWasDoneToIt(t *testing.T) {
	t.Parallel()
	l := open(t)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			if _, err := l.Edit(context.Background(), ops, directory.Edit{Client: fmt.Sprintf("user:u_%d", i), Action: directory.ActionBlock, Reason: "x"}, If{}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if v, broken, err := l.Verify(t.Context()); err != nil || broken != "" || v.Changes != 20 {
		t.Fatalf("%d changes, %q, %v", v.Changes, broken, err)
	}
	tamper(t, l, "CREATE TABLE whole AS TABLE changes; CREATE TABLE whole_chain AS TABLE chain")
	for statement, want := range map[string]string{
		"UPDATE changes SET reason = 'y' WHERE change = 7":     "change 7 of 2026-11-23T12:00:00Z is not as it was written",
		"UPDATE changes SET before = '' WHERE change = 8":      "change 8",
		"DELETE FROM changes WHERE change = 5":                 "change 5 is missing",
		"DELETE FROM changes WHERE change = 20":                "ends at change 19, and its end is recorded at 20",
		"UPDATE chain SET change = 19":                         "ends at change 20, and its end is recorded at 19",
		"UPDATE changes SET at = at + '1 us' WHERE change = 1": "change 1",
	} {
		tamper(t, l, statement)
		if _, broken, err := l.Verify(t.Context()); err != nil || !strings.Contains(broken, want) {
			t.Errorf("%s: %q, %v; want %q", statement, broken, err, want)
		}
		tamper(t, l, "DELETE FROM changes; INSERT INTO changes TABLE whole; DELETE FROM chain; INSERT INTO chain TABLE whole_chain")
	}
}

// tamper runs statements with the rights of the owner of the tables.
func tamper(t *testing.T, l *Ledger, statements string) {
	t.Helper()
	_, err := l.Pool.Exec(t.Context(), "ALTER TABLE changes DISABLE TRIGGER append_only; "+statements+"; ALTER TABLE changes ENABLE TRIGGER append_only")
	if err != nil {
		t.Fatal(err)
	}
}

// TestListsArePagedByName tests that pages contain each client once, and only clients that the
// filter selects.
func TestListsArePagedByName(t *testing.T) {
	t.Parallel()
	l := open(t)
	mustTier(t, l, "gold")
	for i := range 7 {
		mustEdit(t, l, directory.Edit{Client: fmt.Sprintf("user:u_%d", i), Action: directory.ActionSetTier, Tier: "gold"})
	}
	mustEdit(t, l, directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock, Until: start.Add(time.Hour)})
	mustEdit(t, l, directory.Edit{Client: "user:u_3", Action: directory.ActionExempt})
	var got []string
	for after := (policy.ClientName{}); ; {
		page, err := l.Clients(t.Context(), Filter{}, after, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page {
			got, after = append(got, c.Client), c.Name()
		}
		if len(page) < 3 {
			break
		}
	}
	if want := "ip:192.0.2.0/24 user:u_0 user:u_1 user:u_2 user:u_3 user:u_4 user:u_5 user:u_6"; strings.Join(got, " ") != want {
		t.Errorf("%v", got)
	}
	for want, filter := range map[string]Filter{"ip:192.0.2.0/24": {Blocked: true}, "user:u_3": {Exempt: true, Tier: "gold", Kind: "user"}} {
		if page, err := l.Clients(t.Context(), filter, policy.ClientName{}, 10); err != nil || len(page) != 1 || page[0].Client != want {
			t.Errorf("%+v: %v, %v", filter, page, err)
		}
	}
	l.Now = func() time.Time { return start.Add(time.Hour) }
	if page, err := l.Clients(t.Context(), Filter{Blocked: true}, policy.ClientName{}, 10); err != nil || len(page) != 0 {
		t.Errorf("a block that has ended is listed: %v, %v", page, err)
	}
	if err := l.DeleteTier(t.Context(), ops, "gold", "a test"); err == nil || !strings.Contains(err.Error(), `clients have the tier "gold"`) {
		t.Errorf("a tier that clients have is removed: %v", err)
	}
}

// TestTokensEnd tests that a token is valid until it expires or is revoked, and that only one first
// token is made if many processes start at the same time.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	l := open(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	var secrets []string
	for range 4 {
		group.Go(func() {
			secret, _, err := l.FirstToken(context.Background(), ops)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if secret != "" {
				secrets = append(secrets, secret)
			}
		})
	}
	group.Wait()
	if len(secrets) != 1 {
		t.Fatalf("%d first tokens", len(secrets))
	}
	secret, token, err := l.NewToken(t.Context(), ops, "console", Viewer, start.Add(time.Hour+123_456_789), "a test")
	if err != nil {
		t.Fatal(err)
	}
	if !token.ExpiresAt.Equal(start.Add(time.Hour)) {
		t.Errorf("the token expires at %v, which is no whole second", token.ExpiresAt)
	}
	if found, err := l.Bearer(t.Context(), secret); err != nil || found.Role != Viewer || found.Name != "console" {
		t.Errorf("%+v, %v", found, err)
	}
	for _, wrong := range []string{"", "pst_", secret[:len(secret)-1], secret + "00", strings.Replace(secret, "pst_", "", 1), "pst_" + strings.Repeat("0", 64)} {
		if _, err := l.Bearer(t.Context(), wrong); !errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if err := l.Revoke(t.Context(), ops, token.Token, "lost"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Bearer(t.Context(), secret); !errors.Is(err, ErrNone) {
		t.Errorf("a revoked token: %v", err)
	}
	l.Now = func() time.Time { return start.Add(firstTokenTime) }
	if _, err := l.Bearer(t.Context(), secrets[0]); !errors.Is(err, ErrNone) {
		t.Errorf("an expired token: %v", err)
	}
	var kept int
	if err := l.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tokens t, changes c WHERE t::text LIKE '%' || $1 || '%' OR c::text LIKE '%' || $1 || '%'",
		secret[4:]).Scan(&kept); err != nil || kept != 0 {
		t.Errorf("the secret is in %d rows, %v", kept, err)
	}
}
