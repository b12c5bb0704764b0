// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

// #include "stream.h"
import "C"

import (
	"encoding/binary"
	"unsafe"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/envoy-module/front"
)

// reply writes into the stream what the hooks need after a verdict: the fields to set, or a whole
// response.
func reply(s *C.stream, t *front.Stream, v front.Verdict) C.int {
	s.counted = C.uint8_t(t.Counted())
	t.EndSpan()
	if v == front.Respond {
		return writeResponse(s, t.Response())
	}
	if settling := t.Settling(); settling != nil {
		s.settling = C.uint64_t(settlings.add(settling))
	}
	fields, remaining := t.Fields()
	s.remaining = C.int64_t(remaining)
	writeFields(s, fields)
	return C.VERDICT_CONTINUE
}

// writeFields writes the fields to set in a response.
func writeFields(s *C.stream, fields *response.Fields) {
	dst, count := room(s), 0
	for i, value := range fields {
		if value != "" {
			dst = appendField(dst, response.FieldNames[i], value)
			count++
		}
	}
	keep(s, dst, count)
}

// writeResponse writes a response that Envoy sends instead of the upstream's.
func writeResponse(s *C.stream, r *front.Response) C.int {
	var ends uint32
	if r.Ends {
		ends = 1
	}
	dst := room(s)
	for _, n := range [...]uint32{r.Status, uint32(len(r.Headers)), uint32(len(r.Body)), ends} {
		dst = binary.NativeEndian.AppendUint32(dst, n)
	}
	for _, h := range r.Headers {
		dst = appendField(dst, h[0], h[1])
	}
	keep(s, append(dst, r.Body...), 0)
	return C.VERDICT_RESPOND
}

// merge combines the fields of the reply with the same fields of the upstream's response.
func merge(s *C.stream, headers [][2]string) {
	var own response.Fields
	rest := unsafe.Slice((*byte)(unsafe.Pointer(s.reply)), int(s.length))
	for range int(s.count) {
		name, value, after := readField(rest)
		for i := range own {
			if response.FieldNames[i] == name {
				own[i] = value
			}
		}
		rest = after
	}
	front.Merge(&own, int64(s.remaining), headers)
	writeFields(s, &own)
}

// fieldHead is the size of the two lengths that precede the name and the value of a field.
const fieldHead = 8

func appendField(dst []byte, name, value string) []byte {
	dst = binary.NativeEndian.AppendUint32(dst, uint32(len(name)))
	dst = binary.NativeEndian.AppendUint32(dst, uint32(len(value)))
	return append(append(dst, name...), value...)
}

// readField returns a copy of the first field of a reply, and the bytes after that field.
func readField(from []byte) (name, value string, rest []byte) {
	n, v := int(binary.NativeEndian.Uint32(from)), int(binary.NativeEndian.Uint32(from[4:]))
	from = from[fieldHead:]
	return string(from[:n]), string(from[n : n+v]), from[n+v:]
}

// room returns the memory for the stream's reply, as an empty slice to append to.
func room(s *C.stream) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s.reply)), int(s.room))[:0] }

// keep stores a reply in the stream. A reply that did not fit into the stream's room is in Go's
// memory, so keep makes more room and copies it.
func keep(s *C.stream, text []byte, fields int) {
	s.count, s.length = 0, 0
	if len(text) == 0 {
		return
	}
	if unsafe.Pointer(unsafe.SliceData(text)) != unsafe.Pointer(s.reply) {
		at := C.stream_room(s, C.uint32_t(len(text)))
		if at == nil {
			panic("no memory for a reply")
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(at)), len(text)), text)
	}
	s.count, s.length = C.uint32_t(fields), C.uint32_t(len(text))
}
