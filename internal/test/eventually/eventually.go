// SPDX-License-Identifier: Apache-2.0

// Package eventually lets a test wait for an asynchronous event: until a condition is true, or
// until a log that is still being written contains a text.
//
// The package polls. So it costs a check every few milliseconds, and notices an event a few
// milliseconds late. It is not for events for which a test can wait directly, such as a message on
// a channel, the end of a process, or the clock of testing/synctest.
package eventually

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// A condition is often true at once. If it is not, a server is probably busy. So the condition is
// checked frequently at first, and then less frequently.
const (
	pauseMin = time.Millisecond
	pauseMax = 10 * time.Millisecond
)

// Until waits until the function named ok returns true. If that takes longer than patience, the
// test fails with a message that contains the text named what.
func Until(t testing.TB, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	pause := pauseMin
	for deadline := time.Now().Add(patience); !ok(); pause = min(2*pause, pauseMax) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(pause)
	}
}

// Context returns a context for calls that would miss a shorter deadline on a busy machine. The
// context ends with the test, or after a minute.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Journal collects the output of a process or logger for a test to read. The zero Journal is empty.
// A Journal is safe for concurrent use.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer]. Write never fails.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String returns everything written so far.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Logger returns a logger that writes a line of text to the journal for each record of
// slog.LevelInfo or above.
func (j *Journal) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }
