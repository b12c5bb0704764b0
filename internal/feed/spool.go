// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// The suffixes of the files in a spool. A batch is in the file FEED-NUMBER.batch. A batch that the
// control plane cannot read has .rejected instead of .batch, and one that is being written has .new
// in addition.
const (
	suffixBatch    = ".batch"
	suffixRejected = ".rejected"
	suffixNew      = ".new"
	lockName       = "lock"
)

// batch is a file in the spool: lines that are sent in one call.
type batch struct {
	feed   string
	number int64
	bytes  int64
}

func (b *batch) name() string { return fmt.Sprintf("%s-%012d%s", b.feed, b.number, suffixBatch) }

// spool is a folder of batches that are not in the database yet. One process uses it at a time.
type spool struct {
	folder string
	bound  int64
	lock   *os.File

	mu       sync.Mutex
	waiting  []batch // the oldest first
	bytes    int64   // of waiting
	rejected int     // files
}

var errFull = errors.New("the spool is full")

// openSpool opens a folder, and makes it if it is missing.
func openSpool(folder string, bound int64) (*spool, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("the spool: %w; name a folder that this process may write to", err)
	}
	lock, err := lockFile(filepath.Join(folder, lockName))
	if err != nil {
		return nil, fmt.Errorf("the spool %q is used by another process, or cannot be locked: %w; give each process a folder of its own", folder, err)
	}
	s := &spool{folder: folder, bound: bound, lock: lock}
	if err := s.read(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// spool.read finds the batches that an earlier process has left.
func (s *spool) read() error {
	files, err := os.ReadDir(s.folder) // sorted by name, so by feed and number
	if err != nil {
		return fmt.Errorf("the spool: %w", err)
	}
	for _, file := range files {
		path := filepath.Join(s.folder, file.Name())
		switch {
		case strings.HasSuffix(file.Name(), suffixRejected):
			s.rejected++
		case strings.HasSuffix(file.Name(), suffixNew):
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("the spool: %w", err)
			}
		case strings.HasSuffix(file.Name(), suffixBatch):
			b, ok := batchOf(file)
			if !ok {
				return fmt.Errorf("the spool has the file %q, which is no batch: move it away", path)
			}
			s.waiting, s.bytes = append(s.waiting, b), s.bytes+b.bytes
		}
	}
	return nil
}

// batchOf returns the batch that a file in the spool contains, by its name. The result ok is false
// for any other file.
func batchOf(file fs.DirEntry) (b batch, ok bool) {
	feed, number, _ := strings.Cut(strings.TrimSuffix(file.Name(), suffixBatch), "-")
	n, err := strconv.ParseInt(number, 10, 64)
	info, missing := file.Info()
	if err != nil || missing != nil || len(feed) != FeedBytes || n < 1 || !info.Mode().IsRegular() {
		return b, false
	}
	b = batch{feed: feed, number: n, bytes: info.Size()}
	return b, b.name() == file.Name()
}

// hasRoom reports whether n more bytes fit into the given percentage of the bound.
func (s *spool) hasRoom(n, percent int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes+n <= s.bound/100*percent
}

// spool.put writes a batch. When put returns, the batch outlives a crash of the machine.
func (s *spool) put(b batch, text []byte) error {
	b.bytes = int64(len(text))
	path := filepath.Join(s.folder, b.name())
	if err := s.write(path, text); err != nil {
		_ = os.Remove(path + suffixNew)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.bytes = append(s.waiting, b), s.bytes+b.bytes
	return nil
}

func (s *spool) write(path string, text []byte) error {
	file, err := os.OpenFile(path+suffixNew, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+suffixNew, path); err != nil {
		return err
	}
	return syncFolder(s.folder)
}

// spool.oldest returns the batch that was written first.
func (s *spool) oldest() (b batch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return b, false
	}
	return s.waiting[0], true
}

// spool.text returns the content of a batch.
func (s *spool) text(b *batch) ([]byte, error) { return os.ReadFile(filepath.Join(s.folder, b.name())) }

// spool.done removes the oldest batch, because it is in the database.
func (s *spool) done(b *batch) error {
	err := os.Remove(filepath.Join(s.folder, b.name()))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	s.forget(b)
	return err
}

// rejectedMax bounds the files of rejected batches.
const rejectedMax = 16

// spool.reject keeps the oldest batch under another name, because no control plane can take it. If
// there are rejectedMax such files, the batch is removed instead.
func (s *spool) reject(b *batch) error {
	path := filepath.Join(s.folder, b.name())
	s.mu.Lock()
	keep := s.rejected < rejectedMax
	if keep {
		s.rejected++
	}
	s.mu.Unlock()
	defer s.forget(b)
	if !keep {
		return os.Remove(path)
	}
	return os.Rename(path, strings.TrimSuffix(path, suffixBatch)+suffixRejected)
}

func (s *spool) forget(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.bytes -= b.bytes
}

// spool.state returns how many batches wait to be sent, and their size.
func (s *spool) state() (batches int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting), s.bytes
}

// Close leaves the folder to another process.
func (s *spool) Close() error { return s.lock.Close() }
