// SPDX-License-Identifier: Apache-2.0

package abi

import "unsafe"

// To answer a call, Envoy asks for memory and fills it. Then Envoy writes the address and the size
// of the answer to the location that the call names. The variable named given then contains the
// answer. Our write to it is visible to the garbage collector, unlike a write by Envoy. All this
// happens before the call returns, and there is one thread, so these variables serve all calls.
var (
	given   []byte
	address uint32 // where given is in memory: Envoy writes it, and nothing reads it
	size    uint32 // set to 0 before each call, because Envoy does not write the size of an empty answer
)

// property holds the path of the property that is asked for. Envoy reads it only during the call.
var property []byte

//go:wasmexport proxy_on_memory_allocate
func onMemoryAllocate(bytes uint32) *byte {
	given = make([]byte, max(bytes, 1))
	return unsafe.SliceData(given)
}

// answer returns Envoy's answer to a call with the given status. The answer belongs to
// the caller.
func answer(status Status) ([]byte, error) {
	data := given
	given = nil
	switch {
	case status != ok:
		return nil, status
	case size == 0:
		return nil, nil
	case int(size) > len(data):
		return nil, internalFailure
	}
	return data[:size], nil
}

// text returns bytes as an argument of a call.
func text(data []byte) string { return unsafe.String(unsafe.SliceData(data), len(data)) }
