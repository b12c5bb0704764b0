// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/test/eventually"
)

// keep runs a round of the retention at an instant.
func (w *world) keep(archive bool, now time.Time) {
	w.t.Helper()
	if err := (&retain.Keeper{Pool: w.pool, Archive: archive, Logger: w.archiver.Logger}).Round(w.t.Context(), now); err != nil {
		w.t.Fatal(err)
	}
}

// exec runs a statement.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

const bothMonths = usageMonth + " " + eventsMonth

// TestTheFirstStartWithAnArchive tests that a process that is started with an archive for the first
// time drops no month before its archiver has begun, and that the archiver waits for a process that
// is dropping partitions, which would not see that months are archived now.
func TestTheFirstStartWithAnArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if w.keep(true, w.now); w.tables() != bothMonths {
		t.Fatalf("before the archiver has begun there are %q", w.tables())
	}
	tx, err := w.pool.Begin(t.Context())
	if err == nil {
		err = retain.Lock(t.Context(), tx)
	}
	if err != nil {
		t.Fatal(err)
	}
	noted := make(chan error, 1)
	go func() { noted <- w.archiver.on(t.Context()) }()
	eventually.Until(t, 20*time.Second, "the archiver waits for the keeper of partitions", func() bool {
		return w.text("SELECT count(*)::text"+ofThisLock+" AND NOT granted") != "0" || len(noted) > 0
	})
	if len(noted) > 0 {
		t.Error("the archiver does not wait")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-noted; err != nil {
		t.Error(err)
	}
	if w.keep(false, w.now); w.tables() != bothMonths {
		t.Errorf("after the archiver has begun there are %q", w.tables())
	}
}
