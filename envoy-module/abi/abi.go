// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -Wl,--unresolved-symbols=ignore-all
#cgo noescape attribute_text
#cgo nocallback attribute_text
#cgo noescape attribute_number
#cgo nocallback attribute_number
#cgo noescape attribute_bool
#cgo nocallback attribute_bool
#cgo noescape stream_waits
#cgo nocallback stream_waits
#cgo noescape stream_wake
#cgo nocallback stream_wake
#cgo noescape stream_unwaits
#cgo nocallback stream_unwaits
#include "stream.h"
*/
import "C"

import (
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/penstock/penstock/envoy-module/front"
)

// process holds what all configurations share.
var process = front.NewProcess(newLogger())

// penstockInit is called once, when Envoy loads the module. It lets Go code run in one thread more
// than Envoy has workers. With fewer threads, workers would wait for each other and for the
// goroutines that ask the store. Like Envoy, penstockInit ignores SIGPIPE. Otherwise Go would end
// the process when it writes an event to a standard output that nobody reads any more.
//
//export penstockInit
func penstockInit(workers C.uint32_t, validates, givesAll C.bool) {
	signal.Ignore(syscall.SIGPIPE)
	if validates {
		process.Validates()
	}
	if !givesAll {
		process.Lacks("connection.requested_server_name")
	}
	if most := int(workers) + 1; runtime.GOMAXPROCS(0) < most {
		runtime.GOMAXPROCS(most)
	}
}

// penstockOpen opens a configuration of the filter, or of a route, and returns its number. If the
// configuration is invalid, penstockOpen logs every problem and returns 0.
//
//export penstockOpen
func penstockOpen(at *C.char, length C.size_t, ofRoute C.bool) (id C.uint64_t) {
	defer func() {
		if reason := recover(); reason != nil {
			process.Panicked(reason)
			id = 0
		}
	}()
	read, rejected := front.ReadSettings, "the configuration is rejected"
	if ofRoute {
		read, rejected = front.ReadRouteSettings, "the configuration of a route is rejected"
	}
	settings, err := read([]byte(goString(at, length)))
	if err != nil {
		logger.Error(rejected, "error", err)
		return 0
	}
	f, err := process.Open(settings)
	if err != nil {
		logger.Error(rejected, "error", err)
		return 0
	}
	return C.uint64_t(fronts.add(f))
}

// penstockClose begins to close a configuration, and returns at once. All streams of the
// configuration must have ended.
//
//export penstockClose
func penstockClose(id C.uint64_t) {
	defer recoverHook()
	closings.close(fronts.take(uint64(id)))
}

// penstockExit waits for the configurations that are being closed, because they return leased
// units. It waits for at most exitTime.
//
//export penstockExit
func penstockExit() {
	defer recoverHook()
	closings.await(exitTime)
}

// penstockRequest decides a request, or makes it wait.
//
//export penstockRequest
func penstockRequest(s *C.stream, headers *C.header, count C.size_t, source *C.char, length C.size_t) (verdict C.int) {
	f := fronts.get(uint64(s.front))
	defer recoverUndecided(s, f, &verdict)
	t := f.NewStream()
	t.Headers = readHeaders(t.Headers[:0], headers, count)
	t.Tracer = tracerOf(s)
	v := t.Decide(goString(source, length), (*host)(s), (*waker)(s))
	if v == front.Wait {
		s.waiting = C.uint64_t(streams.add(t))
		return C.VERDICT_WAIT
	}
	defer t.Release()
	t.Provoke("adapter")
	verdict = reply(s, t, v)
	yieldIfDue(s, t.Begun())
	return verdict
}

// penstockWoken returns the verdict on a request that waited.
//
//export penstockWoken
func penstockWoken(s *C.stream) (verdict C.int) {
	t := streams.take(uint64(s.waiting))
	defer recoverUndecided(s, t.Front(), &verdict)
	defer t.Release()
	t.Provoke("woken")
	return reply(s, t, t.Woken())
}

// penstockAnnounce makes goroutines ask the store about the requests of one turn of a worker.
//
//export penstockAnnounce
func penstockAnnounce(s *C.stream) {
	defer recoverHook()
	fronts.get(uint64(s.front)).Announce()
	yieldIfDue(s, time.Now())
}

// penstockGone ends a request that waits, because its client has left.
//
//export penstockGone
func penstockGone(id C.uint64_t) {
	defer recoverHook()
	streams.take(uint64(id)).Gone()
}

// penstockMerge combines the fields of the reply with the same fields of the upstream's response.
//
//export penstockMerge
func penstockMerge(s *C.stream, headers *C.header, count C.size_t) {
	defer recoverHook()
	merge(s, readHeaders(nil, headers, count))
}

// penstockResponse reads the beginning of a response on which the charge depends. It then writes
// the fields that the hook sets in the response.
//
//export penstockResponse
func penstockResponse(s *C.stream, headers *C.header, count C.size_t, ends C.bool, details *C.char, length C.size_t, attempts C.uint64_t) {
	defer recoverHook()
	t := settlings.get(uint64(s.settling))
	t.Headers = readHeaders(t.Headers[:0], headers, count)
	fields, listens := t.Begin(&front.Beginning{Headers: t.Headers, Ends: bool(ends), Complete: bool(s.complete),
		Details: goString(details, length), Attempts: uint64(attempts)})
	s.listens = C.bool(listens)
	writeFields(s, fields)
}

// penstockBody reads pieces of the body of a response.
//
//export penstockBody
func penstockBody(s *C.stream, chunks *C.text, count C.size_t, ends C.bool) {
	defer recoverHook()
	t := settlings.get(uint64(s.settling))
	for _, c := range unsafe.Slice(chunks, int(count)) {
		s.listens = C.bool(t.Body(unsafe.Slice((*byte)(unsafe.Pointer(c.at)), int(c.length)), false))
	}
	if ends {
		s.listens = C.bool(t.Body(nil, true))
	}
}

// penstockTrailers reads the trailers of a response.
//
//export penstockTrailers
func penstockTrailers(id C.uint64_t, trailers *C.header, count C.size_t) {
	defer recoverHook()
	t := settlings.get(uint64(id))
	t.Headers = readHeaders(t.Headers[:0], trailers, count)
	t.Trailers(t.Headers)
}

// penstockEnded is called when a response on which the charge depends has ended.
//
//export penstockEnded
func penstockEnded(id C.uint64_t) {
	defer recoverHook()
	settlings.take(uint64(id)).End()
}

// recoverUndecided recovers from a panic while a request is decided, and lets on_error decide. It
// must be deferred.
func recoverUndecided(s *C.stream, f *front.Front, verdict *C.int) {
	reason := recover()
	if reason == nil {
		return
	}
	process.Panicked(reason)
	(*tracer)(s).End(nil)
	*verdict = C.VERDICT_CONTINUE
	s.count, s.counted = 0, C.uint8_t(front.CountPanic)
	if f.Denies() {
		*verdict = writeResponse(s, front.Unguarded())
	}
}

// recoverHook recovers from a panic in a hook that decides nothing. It must be deferred.
func recoverHook() {
	if reason := recover(); reason != nil {
		process.Panicked(reason)
	}
}

// goString returns a string that shares the memory at a C address. The string is valid for as long
// as Envoy keeps that memory.
func goString(at *C.char, length C.size_t) string {
	return unsafe.String((*byte)(unsafe.Pointer(at)), int(length))
}

// readHeaders appends the headers, whose texts stay in Envoy's memory.
func readHeaders(into [][2]string, headers *C.header, count C.size_t) [][2]string {
	for _, h := range unsafe.Slice(headers, int(count)) {
		into = append(into, [2]string{goString(h.name, h.name_length), goString(h.value, h.value_length)})
	}
	return into
}

// host gives access to the attributes of a stream.
type host C.stream

// Attribute implements [front.Host].
func (h *host) Attribute(name string) (string, bool) {
	id, isNumber, isBool, ok := front.AttributeID(name)
	s := (*C.stream)(h)
	switch {
	case !ok:
		return "", false
	case isNumber:
		var n C.uint64_t
		ok = bool(C.attribute_number(s, C.int(id), &n))
		return strconv.FormatUint(uint64(n), 10), ok
	case isBool:
		var is C.bool
		ok = bool(C.attribute_bool(s, C.int(id), &is))
		return strconv.FormatBool(bool(is)), ok
	}
	var value C.text
	ok = bool(C.attribute_text(s, C.int(id), &value))
	if !ok {
		return "", false
	}
	return goString(value.at, value.length), true
}

// waker wakes a stream.
type waker C.stream

// Waits implements [front.Waker].
func (w *waker) Waits() { C.stream_waits((*C.stream)(w)) }

// Wake implements [front.Waker].
func (w *waker) Wake() { C.stream_wake((*C.stream)(w)) }

// Announces implements [front.Waker].
func (*waker) Announces() bool { return true }

// Unwaits implements [front.Waker].
func (w *waker) Unwaits() { C.stream_unwaits((*C.stream)(w)) }
