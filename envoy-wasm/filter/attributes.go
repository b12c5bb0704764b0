// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// attributes holds the parts of one request that the policy reads. The type is filled
// once, from the headers.
type attributes struct {
	exchange.Request
	origin uint64 // hash of the connection's address and x-request-id
}

// attributes.take reads a request. Header names are lower case, as Envoy has them.
func (a *attributes) take(h Host, p *policy, headers [][2]string, appended bool) {
	a.Take(&p.reads, headers, h.Now())
	a.address(h, appended)
	for _, name := range p.reads.Attrs {
		a.Ask.Attrs = append(a.Ask.Attrs, attributeText(h, name))
	}
}

// fnvOffset is the initial value of a hash.
const fnvOffset = 14695981039346656037

// hash continues the 64-bit FNV-1a hash h with a text.
//
//go:noinline
func hash(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * fnvPrime
	}
	return h
}

const fnvPrime = 1099511628211 // the prime of the 64-bit FNV hash

// askBytesMax is the maximum length of a question. A question of this length fits into a call.
// Envoy accepts 60 KiB of headers by default, and can be configured to accept up to 8 MiB.
const askBytesMax = wire.CallBytesMax - 4096

// size returns an upper bound of the size in bytes of a question about the request.
//
//go:noinline
func (a *attributes) size() int {
	const overhead = 8 // per text: its length, and whether it is present
	n := 64 + 4*overhead + len(a.Ask.Path) + len(a.Ask.Method) + len(a.Ask.Host) + len(a.Ask.Query)
	for _, list := range [...][]wire.Value{a.Ask.Headers, a.Ask.Attrs} {
		for i := range list {
			n += overhead + len(list[i].Text)
		}
	}
	return n
}
