// SPDX-License-Identifier: Apache-2.0

// Package survive keeps a panic of background work from ending the process.
//
// # Promise
//
// Work that panics is begun again after a second. The panic is counted, and logged with its stack.
// Because of the pause, each kind of work logs at most one panic a second. Work that somebody waits
// for ends with its panic as an error ([Once]).
//
// # Price
//
// Each beginning of the work costs a deferred function.
//
// # When not to use it
//
// A goroutine that decides a request recovers from a panic itself, because on_error must then
// decide the request.
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

// Panics returns how often work of [Go] and [Once] has panicked in this process.
func Panics() int64 { return panics.Load() }

// Go begins work in a goroutine of the group, and begins it again after each panic. Work must not
// hold a lock when it panics, and must be able to continue when it is begun again. A nil logger is
// the default one.
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

// Once runs the work, and returns its panic as an error. The panic is counted, and logged with its
// stack. A nil logger is the default one.
func Once(logger *slog.Logger, work func() error) (err error) {
	if logger == nil {
		logger = slog.Default()
	}
	defer func() {
		if reason := recover(); reason != nil {
			panics.Add(1)
			logger.Error("a panic in the background", "reason", fmt.Sprint(reason), "stack", string(debug.Stack()))
			err = fmt.Errorf("a panic: %v", reason)
		}
	}()
	return work()
}

// returns does the work, and reports whether the work returned rather than panicked.
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
