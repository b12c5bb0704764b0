// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

// #include "stream.h"
import "C"

import (
	"runtime"
	"time"
)

// A worker of Envoy is a thread of C. It calls a Go function for each hook, which soon returns to
// C. So the worker never enters Go's scheduler, and to the scheduler it looks like one goroutine
// that runs all the time. After 10 ms, Go's monitor thread takes the processor (P) from the worker
// whenever the worker is in C, and checks for that every 20 µs. Without yields, these checks took
// 5 to 10 % of the CPU time of a busy Envoy. So a busy worker yields from time to time, which
// enters the scheduler. The monitor then looks only every 10 ms.
//
// A yield takes two switches of threads, so a worker with few requests does not yield.
const (
	yieldEvery = 5 * time.Millisecond // less than the 10 ms after which the monitor intervenes
	yieldAfter = 8                    // requests
)

// pace decides when a worker yields. Each worker has a pace of its own, in C memory.
type pace C.pace

// pace.due counts one request of the worker, or one turn in which requests began to wait, and
// reports whether the worker must yield now. The argument named now is the time since some fixed
// instant.
func (p *pace) due(now time.Duration) bool {
	p.requests++
	if p.requests < yieldAfter || now-time.Duration(p.yielded) < yieldEvery {
		return false
	}
	p.requests, p.yielded = 0, C.int64_t(now)
	return true
}

// loaded is the time at which the module was loaded.
var loaded = time.Now()

// yieldIfDue makes the worker of a stream yield if that is due. The argument named now may be the
// zero time, if the decision of the request failed early.
func yieldIfDue(s *C.stream, now time.Time) {
	if (*pace)(s.pace).due(max(0, now.Sub(loaded))) {
		runtime.Gosched()
	}
}
