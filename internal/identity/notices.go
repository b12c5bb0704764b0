// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"log/slog"
	"sync"
	"time"
)

// noticeEvery is the least time between two log lines that requests cause: whoever sends tokens must not fill the log.
const noticeEvery = 10 * time.Second

// notices writes log lines at a bounded rate. Safe for concurrent use.
type notices struct {
	logger *slog.Logger

	mu     sync.Mutex
	last   string    // the last text of a change
	due    time.Time // before which sometimes keeps quiet
	hidden int       // how often it has kept quiet since its last line
}

func newNotices(logger *slog.Logger) *notices {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &notices{logger: logger}
}

// sometimes is for what requests cause: one line each ten seconds, with the number of those that were not written.
func (n *notices) sometimes(text string) {
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

// failing is for what goes on until somebody mends it: the first time, and when it becomes something else.
func (n *notices) failing(text string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if text != n.last {
		n.last = text
		n.logger.Warn(text, args...)
	}
}

// changed is for what happens once.
func (n *notices) changed(text string, args ...any) { n.logger.Warn(text, args...) }

// mended is for the end of what was failing.
func (n *notices) mended(text string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last != "" {
		n.last = ""
		n.logger.Info(text, args...)
	}
}
