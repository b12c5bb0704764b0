// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// watchEvery is how often a file is looked at: one stat, some microseconds.
	watchEvery = 500 * time.Millisecond
	// racyFor is how long after a file's own time it may still change without showing it: file systems keep times to the
	// second or worse.
	racyFor = 2 * time.Second
)

// watchedFile loads a file anew when it changes. It looks by itself rather than waiting for the kernel's word, which does
// not come from network file systems, and comes for the wrong file where Kubernetes swaps a symlink to the folder above.
// An edit is loaded once it has stood still for one look: a file that is being written might be valid, and short.
type watchedFile struct {
	path    string
	sizeMax int64
	smaller string                  // what to do about one that is larger; may be empty
	load    func(data []byte) error // an error leaves in force what was
	notices *notices

	sum    [32]byte    // of what was read last
	loaded os.FileInfo // how it looked then
	racy   bool        // whether it may have changed since without looking otherwise
	seen   os.FileInfo // how it looked at the last look, if it had changed
	// missing says that the last look found no file.
	missing bool
}

// open loads the file for the first time.
func (w *watchedFile) open() error {
	info, err := os.Stat(w.path)
	if err != nil {
		return err
	}
	_, err = w.read(info)
	return err
}

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

// look loads the file if it has changed and stands still.
func (w *watchedFile) look(now time.Time) {
	info, err := os.Stat(w.path)
	if err != nil {
		w.notices.failing("a file cannot be read, what it held stays in force: " + cut(err.Error()))
		w.missing = true
		return
	}
	settled := w.racy && now.Sub(info.ModTime()) > racyFor
	if sameFile(info, w.loaded) && !settled {
		w.seen = nil
		w.back()
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
		w.missing = false // what is wrong with it goes on
		w.notices.failing("an edit of a file is refused, what it held before stays in force: "+cut(err.Error()), "file", w.path)
	case changed:
		w.notices.mended("a file is in order again", "file", w.path)
		w.notices.logger.Info("a file was edited, and is in force", "file", w.path)
		w.missing = false
	default:
		w.back()
	}
}

// back says that a file that was missing is there again, as it was.
func (w *watchedFile) back() {
	if w.missing {
		w.missing = false
		w.notices.mended("a file can be read again, and is as it was", "file", w.path)
	}
}

// read loads the file unless its content is the one that was read last.
func (w *watchedFile) read(info os.FileInfo) (changed bool, err error) {
	if !info.Mode().IsRegular() { // to open a pipe would wait for whoever writes to it
		return false, fmt.Errorf("%s is no regular file", w.path)
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

func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
