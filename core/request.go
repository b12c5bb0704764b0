// SPDX-License-Identifier: Apache-2.0

package core

import "net/netip"

// request is one request as the matcher sees it: read once from its attributes and brought into one form. The zero
// request is ready to read; reuse it, so that its buffers are. Its strings are valid until the next read. It must not be
// used concurrently.
type request struct {
	attrs  Attributes
	path   string     // normalised, case kept
	folded string     // path without differences of case
	method string     // upper case, HEAD as GET
	host   string     // lower case, without port and trailing dot; an IPv6 address stands in brackets
	peer   netip.Addr // unmapped, without zone; zero if unknown
}

// read takes a request in. It does not allocate once the request's buffers have grown.
func (r *request) read(a Attributes) { panic("todo") }
