// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Command module is a native module for Envoy that decides nothing. It reads all headers of a
// request and the client's address in Go, and sets as many fields in the response as Penstock's
// module. This is the least that a limiter in Go can do. In another mode, it makes the same calls
// to Envoy as Penstock's module.
package main

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -Wl,--unresolved-symbols=ignore-all
#include "../../envoy-module/abi/envoy.h"
*/
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

func main() {}

// read is the sum of all bytes of the headers. If the bytes were not used, the compiler could
// remove the code that reads them.
var read atomic.Int64

//export benchInit
func benchInit(workers C.uint32_t) {
	if most := int(workers) + 1; runtime.GOMAXPROCS(0) < most {
		runtime.GOMAXPROCS(most)
	}
}

//export benchNothing
func benchNothing() {}

//export benchReads
func benchReads(headers *C.header, count C.size_t, source *C.char, length C.size_t) {
	n := int(length)
	for _, h := range unsafe.Slice(headers, int(count)) {
		for _, b := range unsafe.Slice((*byte)(unsafe.Pointer(h.name)), int(h.name_length)) {
			n += int(b)
		}
		for _, b := range unsafe.Slice((*byte)(unsafe.Pointer(h.value)), int(h.value_length)) {
			n += int(b)
		}
	}
	for _, b := range unsafe.Slice((*byte)(unsafe.Pointer(source)), int(length)) {
		n += int(b)
	}
	read.Store(int64(n))
}
