// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

/*
#cgo noescape span_begin
#cgo nocallback span_begin
#cgo noescape span_tag
#cgo nocallback span_tag
#cgo noescape span_end
#cgo nocallback span_end
#include "stream.h"
*/
import "C"

import (
	"unsafe"

	"github.com/penstock/penstock/envoy-module/front"
)

// tracer makes the span of a stream.
type tracer C.stream

// tracerOf returns the tracer of a stream, or nil if Envoy does not trace the request.
func tracerOf(s *C.stream) front.Tracer {
	if !s.traced {
		return nil
	}
	return (*tracer)(s)
}

// Begin implements [front.Tracer].
func (t *tracer) Begin() { C.span_begin((*C.stream)(t)) }

// End implements [front.Tracer].
func (t *tracer) End(attributes [][2]string) {
	for _, a := range attributes {
		C.span_tag((*C.stream)(t), addressOf(a[0]), C.size_t(len(a[0])), addressOf(a[1]), C.size_t(len(a[1])))
	}
	C.span_end((*C.stream)(t))
}

// addressOf returns the address of a text.
func addressOf(text string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(text))) }
