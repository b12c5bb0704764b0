// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// TestAMonthIsReadWithoutARestore tests that a query reads the rows from the bucket as they were in
// the database, for one client and for all. The query does not restore the month's table, works
// without the database's record of the archive, and uses no rows of an altered object.
func TestAMonthIsReadWithoutARestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const sums = "SELECT count(*) || ' ' || sum(events) FROM rate_limit_events"
	all, ofClient := w.text(sums), w.text(sums+" WHERE client = 'user:7' AND rule = 'r0'")
	usage := w.text("SELECT count(*) || ' ' || sum(units) FROM client_usage WHERE client = 'user:7'")
	w.round()
	read := func(partition, sum string, wanted map[string]string) string {
		t.Helper()
		columns, err := Columns(partition)
		if err != nil {
			t.Fatal(err)
		}
		rows, total := 0, int64(0)
		if err := w.archiver.Query(t.Context(), partition, wanted, func(values []any) error {
			for i, column := range columns {
				if column == sum {
					total += values[i].(int64)
				}
			}
			rows++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(rows, " ", total)
	}
	checks := func(what string) {
		t.Helper()
		for _, c := range []struct {
			got, want string
		}{{read(eventsMonth, "events", nil), all}, {read(eventsMonth, "events", map[string]string{"client": "user:7", "rule": "r0"}), ofClient},
			{read(usageMonth, "units", map[string]string{"client": "user:7"}), usage}, {read(eventsMonth, "events", map[string]string{"client": "user:none"}), "0 0"}} {
			if c.got != c.want {
				t.Errorf("%s: the archive has %q, and the database had %q", what, c.got, c.want)
			}
		}
	}
	checks("after the archive")
	if w.tables() != "" {
		t.Errorf("a query restores %s", w.tables())
	}
	if _, err := w.pool.Exec(t.Context(), "DELETE FROM archive_objects; DELETE FROM archives"); err != nil {
		t.Fatal(err)
	}
	checks("without the database's knowledge")
	ignore := func([]any) error { return nil }
	for partition, wanted := range map[string]map[string]string{"clients_2019_02": nil, "rate_limit_events_2018_01": nil, eventsMonth: {"none": ""}} {
		if err := w.archiver.Query(t.Context(), partition, wanted, ignore); err == nil {
			t.Errorf("%s with %v is read", partition, wanted)
		}
	}
	enough := errors.New("enough")
	if err := w.archiver.Query(t.Context(), eventsMonth, nil, func([]any) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("an end of the caller is reported as %v", err)
	}
	if err := os.Truncate(w.objects("events")[0], 100); err != nil {
		t.Fatal(err)
	}
	if err := w.archiver.Query(t.Context(), eventsMonth, nil, func([]any) error {
		t.Error("a row of an altered object is used")
		return enough
	}); !errors.As(err, new(*Wrong)) {
		t.Errorf("an altered object is reported as %v", err)
	}
}
