// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/test/eventually"
)

// world.keep runs a round of the retention at an instant.
func (w *world) keep(archive bool, now time.Time) {
	w.t.Helper()
	if err := (&retain.Keeper{Pool: w.pool, Archive: archive, Logger: w.archiver.Logger}).Round(w.t.Context(), now); err != nil {
		w.t.Fatal(err)
	}
}

// world.exec runs a statement.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

const bothMonths = usageMonth + " " + eventsMonth

// TestTheFirstStartWithAnArchive tests that a process that is started with an archive for the first
// time drops no month before its archiver has begun. It also tests that the archiver waits for a
// process that is dropping partitions, because that process would not notice that months are now
// archived.
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
	go func() { noted <- w.archiver.turnOn(t.Context()) }()
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

// TestAFullerArchiveIsNotReplaced tests a process that keeps months longer than the archiver does:
// it creates no empty partition of a month that is only in the archive. It also tests that a
// database that is older than the archive, and has only some rows of a month, does not replace the
// archive of that month.
func TestAFullerArchiveIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.contents()
	w.round()
	if w.keep(true, w.old); w.tables() != "" {
		t.Errorf("months that are in the archive have tables again: %s", w.tables())
	}
	w.round()
	if w.restoreAll(); w.contents() != before {
		t.Fatal("the rows differ after a process created partitions")
	}
	w.now = w.now.Add(2 * time.Hour)
	w.round()

	objects := w.objects("events")
	w.exec("DELETE FROM archive_objects")
	w.exec("DELETE FROM archives")
	w.keep(true, w.old)
	w.exec("DELETE FROM feeds")
	w.fill(1)
	for range 2 {
		_, err := w.archiver.Round(t.Context(), w.now)
		if err == nil || !strings.Contains(err.Error(), "drop the partition") {
			t.Fatalf("the archive of a month of which there is one row: %v", err)
		}
	}
	if after := w.objects("events"); !slices.Equal(after, objects) {
		t.Fatalf("the archive had the objects %v, and has %v", objects, after)
	}
	m, err := monthOf(eventsMonth)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.archiver.notLess(t.Context(), m, &Totals{}); err == nil {
		t.Error("a month without rows replaces another")
	}
	// This is the remedy that the error names.
	if _, err := w.archiver.Restore(t.Context(), eventsMonth, w.now, w.now.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "is in the database") {
		t.Errorf("the restore of a month that has a table: %v", err)
	}
	w.exec("DROP TABLE " + eventsMonth + ", " + usageMonth)
	if w.restoreAll(); w.contents() != before {
		t.Error("the rows differ after the restore")
	}
}

// TestNoRestoreOverATable tests that a restore changes nothing if the month has a table and is not
// recorded as archived in the database.
func TestNoRestoreOverATable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.round()
	w.exec("DELETE FROM archive_objects")
	w.exec("DELETE FROM archives")
	w.keep(true, w.old)
	if _, err := w.archiver.Restore(t.Context(), eventsMonth, w.now, w.now.Add(time.Hour)); err == nil {
		t.Error("a month that has a table is restored")
	}
	if n := w.text("SELECT count(*)::text FROM archives"); n != "0" {
		t.Errorf("the database has %s months in the archive", n)
	}
}

// TestADamagedManifestIsNotReplaced tests that an archive whose manifest cannot be read is not
// replaced, because it is not known what the archive contains.
func TestADamagedManifestIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := filepath.Join(w.s3.Folder, "penstock", "2019", "02")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "events.manifest.json"), []byte("{"), 0o644)); err != nil {
		t.Fatal(err)
	}
	_, err := w.archiver.Round(t.Context(), w.now)
	if err == nil || !strings.Contains(err.Error(), "cannot be compared") {
		t.Errorf("a month whose manifest is damaged: %v", err)
	}
	if w.tables() != eventsMonth {
		t.Errorf("there are %q", w.tables())
	}
}

// TestAProcessThatWasFrozenBeforeTheDrop tests that a process that is frozen before it drops a
// partition, and overtaken by another process, does not change the database's information about the
// archive.
func TestAProcessThatWasFrozenBeforeTheDrop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, second, frozen := w.contents(), w.archiverAt(w.s3.URL()), false
	w.archiver.step = func(step string) {
		if step != "drop" || frozen {
			return
		}
		frozen = true
		w.exec("SELECT pg_terminate_backend(pid)" + ofThisLock)
		eventually.Until(t, 20*time.Second, "the lock is free", func() bool {
			return w.text("SELECT count(*)::text"+ofThisLock) == "0"
		})
		if _, err := second.Round(t.Context(), w.now); err != nil {
			t.Error(err)
		}
	}
	// If the process is slow, it may notice before this step that it has lost its lock.
	if _, err := w.archiver.Round(t.Context(), w.now); !errors.Is(err, errOther) && (err == nil || !strings.Contains(err.Error(), "the lock of the archive is lost")) {
		t.Errorf("a process that was overtaken: %v", err)
	}
	w.archiver.step = nil
	m, err := monthOf(eventsMonth)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.archiver.load(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	s.state = stateVerified // as it was before the other process dropped the partition
	if err := w.archiver.restartMonth(t.Context(), m, s); !errors.Is(err, errOther) {
		t.Errorf("a process that was overtaken begins the month anew: %v", err)
	}
	for _, partition := range []string{eventsMonth, usageMonth} {
		if _, err := w.archiver.Verify(t.Context(), partition); err != nil {
			t.Errorf("%s: %v", partition, err)
		}
	}
	if w.restoreAll(); w.contents() != before {
		t.Error("the rows differ after the restore")
	}
}

// TestRestoredMonthsStayUntilTheirEnd tests that the archive cannot be turned off while a month is
// restored, and that the retention drops no restored month.
func TestRestoredMonthsStayUntilTheirEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.round()
	w.restoreAll()
	if err := w.archiver.Off(t.Context()); err == nil || !strings.Contains(err.Error(), "is restored until 2026-06-01T01:00:00Z") {
		t.Errorf("the archive is turned off: %v", err)
	}
	w.exec("UPDATE archiving SET wanted = false")
	if w.keep(false, w.now); w.tables() != bothMonths {
		t.Errorf("there are %q", w.tables())
	}
	w.now = w.now.Add(2 * time.Hour)
	w.round()
	if err := w.archiver.Off(t.Context()); err != nil {
		t.Error(err)
	}
	if wanted := w.text("SELECT wanted::text FROM archiving"); wanted != "false" || w.tables() != "" {
		t.Errorf("the archive is wanted: %s; there are %q", wanted, w.tables())
	}
}
