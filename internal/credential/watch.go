// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

const (
	// watchEvery is the time between two checks of a file. A check is one stat call, which takes a
	// few microseconds.
	watchEvery = 500 * time.Millisecond
	// racyFor is how long after its modification time a file can change without getting a new time.
	// Some file systems record modification times only to the second, or more coarsely.
	racyFor = 2 * time.Second
)

// reloads counts the edits of all files of this process.
var reloads struct{ accepted, refused atomic.Uint64 }

// Reloads returns how many edits of key files, key sets and secrets this process has put in force,
// and how many it has rejected.
func Reloads() (accepted, refused uint64) { return reloads.accepted.Load(), reloads.refused.Load() }

// watchedFile loads a file again when it changes. A watchedFile polls: network file systems send no
// events, and when Kubernetes swaps a symlink to the folder, the event names another file. A
// changed file is loaded only when the next check finds it unchanged, because a file that is being
// written can be valid but incomplete.
type watchedFile struct {
	path    string
	sizeMax int64
	// a description of how to reduce the size of a file that is too large; it may be empty
	smaller string
	load    func(data []byte) error // if load returns an error, the previous content remains in force
	notices *notices

	sum    [32]byte    // hash of the content that was read last
	loaded os.FileInfo // the file's state at that time
	racy   bool        // the file might have changed since then without a visible difference
	seen   os.FileInfo // the file's state at the last check, if it had changed
	// whether the last check found no file
	missing bool
}

// watchedFile.open loads the file for the first time.
func (w *watchedFile) open() error {
	info, err := os.Stat(w.path)
	if err != nil {
		return err
	}
	_, err = w.read(info)
	return err
}

// watchedFile.run checks the file periodically until ctx is done.
func (w *watchedFile) run(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look(time.Now())
		}
	}
}

// watchedFile.look calls check and recovers from a panic: the process continues with the last
// loaded keys. The content that caused the panic is not loaded again until the file changes.
func (w *watchedFile) look(now time.Time) {
	if err := recoverPanic(func() error { w.check(now); return nil }); err != nil {
		w.missing = false
		w.notices.panicked("loading a file panicked, its previous content stays in force", err, "file", w.path)
	}
}

// watchedFile.check loads the file again when two checks in a row have found the same change,
// because a file that is being written can be incomplete. A file that was loaded right after its
// modification is read once more, since a later change might not be visible.
func (w *watchedFile) check(now time.Time) {
	info, err := os.Stat(w.path)
	if err != nil {
		w.notices.logFailure("a file cannot be read, its previous content stays in force: " + cut(err.Error()))
		w.missing = true
		return
	}
	settled := w.racy && now.Sub(info.ModTime()) > racyFor
	if sameFile(info, w.loaded) && !settled {
		w.seen = nil
		w.logReturn()
		return
	}
	if !sameFile(info, w.loaded) && (w.seen == nil || !sameFile(info, w.seen)) {
		w.seen = info
		return
	}
	w.seen = nil
	changed, err := w.read(info)
	switch {
	case err != nil:
		reloads.refused.Add(1)
		w.missing = false // so that logReturn does not log that the file is back
		w.notices.logFailure("an edit of a file is rejected, its previous content stays in force: "+cut(err.Error()), "file", w.path)
	case changed:
		reloads.accepted.Add(1)
		w.notices.logRecovery("a file is in order again", "file", w.path)
		w.notices.logger.Info("an edit of a file is in force", "file", w.path)
		w.missing = false
	default:
		w.logReturn()
	}
}

// logReturn logs that a missing file exists again, unchanged.
func (w *watchedFile) logReturn() {
	if w.missing {
		w.missing = false
		w.notices.logRecovery("a file can be read again, unchanged", "file", w.path)
	}
}

// watchedFile.read loads the file unless its content is unchanged.
func (w *watchedFile) read(info os.FileInfo) (changed bool, err error) {
	if !info.Mode().IsRegular() { // a pipe must not be opened: that would block until there is a writer
		return false, fmt.Errorf("%s is not a regular file", w.path)
	}
	file, err := os.Open(w.path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, w.sizeMax+1))
	if err != nil {
		return false, err
	}
	if int64(len(data)) > w.sizeMax {
		err = fmt.Errorf("%s is larger than %d bytes%s", w.path, w.sizeMax, w.smaller)
	}
	sum := sha256.Sum256(data)
	same := w.loaded != nil && sum == w.sum
	w.loaded, w.sum, w.racy = info, sum, time.Since(info.ModTime()) <= racyFor
	if err != nil || same {
		return false, err
	}
	if err := w.load(data); err != nil {
		return true, fmt.Errorf("%s: %w", w.path, err)
	}
	return true, nil
}

// sameFile reports whether a and b describe the same file, unchanged between them.
func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
