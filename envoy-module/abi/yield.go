// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

// #include "stream.h"
import "C"

import (
	"runtime"
	"time"
)

// A worker of Envoy calls hooks, which return to C. So it never enters Go's scheduler, and the
// scheduler believes that one goroutine runs all the time. After 10 ms of that, Go's monitor thread
// takes the worker's processor away whenever the worker is in C, and looks again every 20 µs. That
// thread then took 5 to 10 % of the CPU of a busy Envoy. So a busy worker yields from time to time:
// it enters the scheduler, and the monitor looks only every 10 ms.
//
// A yield takes two switches of threads, so a worker with few requests does not yield.
const (
	yieldEvery = 5 * time.Millisecond // less than 10 ms, to be in time for each look of the monitor
	yieldAfter = 8                    // requests
)

// The type pace says when a worker yields. Each worker has its own, in C memory.
type pace C.pace

// The method due counts one request of the worker, or one turn in which requests began to wait, and
// reports whether the worker must yield now. The argument now is a time since any fixed instant.
func (p *pace) due(now time.Duration) bool {
	p.requests++
	if p.requests < yieldAfter || now-time.Duration(p.yielded) < yieldEvery {
		return false
	}
	p.requests, p.yielded = 0, C.int64_t(now)
	return true
}

// loaded is when the module was loaded.
var loaded = time.Now()

// yieldIfDue makes the worker of a stream yield if that is due. If the decision of the stream's
// request failed early, now may be the zero time.
func yieldIfDue(s *C.stream, now time.Time) {
	if (*pace)(s.pace).due(max(0, now.Sub(loaded))) {
		runtime.Gosched()
	}
}
