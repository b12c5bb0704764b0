// SPDX-License-Identifier: Apache-2.0

package abi

import "strconv"

// Status is the result of a call to Envoy. As an error it is never 0.
type Status uint32

// The statuses that Envoy's functions return.
const (
	ok              Status = 0
	NotFound        Status = 1 // Envoy does not have the item that the call names
	BadArgument     Status = 2
	internalFailure Status = 10
)

// Error implements error.
func (s Status) Error() string {
	switch s {
	case NotFound:
		return "Envoy: not found"
	case BadArgument:
		return "Envoy: bad argument"
	case internalFailure:
		return "Envoy: internal failure"
	}
	return "Envoy: status " + strconv.Itoa(int(s)) + " of the Proxy-Wasm ABI"
}

// Status.err returns the status as an error; nil if the call has succeeded.
func (s Status) err() error {
	if s == ok {
		return nil
	}
	return s
}
