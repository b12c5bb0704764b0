// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"log/slog"
	"sync"
	"time"
)

// noticeEvery is the least time between two log lines caused by requests, so that clients cannot
// fill the log.
const noticeEvery = 10 * time.Second

// notices writes log lines at a bounded rate. The type is safe for concurrent use.
type notices struct {
	logger *slog.Logger

	mu     sync.Mutex
	last   string    // the last text that logFailure has logged
	due    time.Time // the time until which logSometimes logs nothing
	hidden int       // the number of events since logSometimes last wrote a line
}

// newNotices returns notices for a logger. A nil logger discards them.
func newNotices(logger *slog.Logger) *notices {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &notices{logger: logger}
}

// logSometimes logs an event caused by a request. It writes at most one line per noticeEvery, with
// the number of events that were not logged.
func (n *notices) logSometimes(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if now.Before(n.due) {
		n.hidden++
		return
	}
	n.logger.Warn(text, "others_since", n.hidden)
	n.due, n.hidden = now.Add(noticeEvery), 0
}

// logFailure logs a lasting failure once, and again when the text changes.
func (n *notices) logFailure(text string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if text != n.last {
		n.last = text
		n.logger.Warn(text, args...)
	}
}

// logEvent logs a single event.
func (n *notices) logEvent(text string, args ...any) { n.logger.Warn(text, args...) }

// logRecovery logs the end of a failure that logFailure has logged.
func (n *notices) logRecovery(text string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last != "" {
		n.last = ""
		n.logger.Info(text, args...)
	}
}
