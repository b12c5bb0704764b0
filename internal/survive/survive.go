// SPDX-License-Identifier: Apache-2.0

// Package survive keeps a panic of background work from ending the process.
//
// # Promise
//
// Work that panics is begun again after a second. The panic is counted, and logged with its stack,
// so that at most one line a second is written for each kind of work.
//
// # Price
//
// A deferred function for each beginning of the work.
//
// # When not to use it
//
// A goroutine that decides a request recovers itself, because on_error must decide that request.
package survive

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// pause is the time between a panic and the next beginning of the work.
const pause = time.Second

var panics atomic.Int64

// Panics returns how often work of [Go] has panicked in this process.
func Panics() int64 { return panics.Load() }

// Go begins work in a goroutine of the group, and begins it again after each panic. Work must not
// hold a lock when it panics, and must be able to begin again where it was. A nil logger is the
// default one.
func Go(running *sync.WaitGroup, logger *slog.Logger, work func()) {
	if logger == nil {
		logger = slog.Default()
	}
	running.Go(func() {
		for !returns(logger, work) {
			time.Sleep(pause)
		}
	})
}

// returns does the work, and reports whether it returned rather than panicked.
func returns(logger *slog.Logger, work func()) (returned bool) {
	defer func() {
		if reason := recover(); reason != nil {
			panics.Add(1)
			logger.Error("a panic in the background; the work begins again", "reason", fmt.Sprint(reason), "stack", string(debug.Stack()))
		}
	}()
	work()
	return true
}
