// SPDX-License-Identifier: Apache-2.0

// Package await lets a test wait for what others do meanwhile: until something is so, or until something is said in a log
// that is written to while the test reads it.
//
// It looks again and again, so it costs a look every few milliseconds and what a test waits for may be some milliseconds old.
// It is not for what can be waited for: a channel, a process' end, or the clock of testing/synctest.
package await

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// What is looked at is often there at once, or a server that has other work: it is asked often at first, then less.
const (
	pauseMin = time.Millisecond
	pauseMax = 10 * time.Millisecond
)

// Until returns when ok says so. If it does not in patience, the test fails with what it waited for.
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

// Journal is what a process or a logger writes and a test reads. The zero Journal is empty. It is safe for concurrent use.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer]. It never fails.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String returns all that was written until now.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Logger returns a logger that writes here, a line of text for each record from slog.LevelInfo on.
func (j *Journal) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }
