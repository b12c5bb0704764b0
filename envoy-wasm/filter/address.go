// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// forwarded is the header to which proxies append addresses.
const forwarded = "X-Forwarded-For"

var sourceAddress = []string{"source", "address"}

// address determines the addresses of the request.
//
// source.address is the address of the connection, with its port. With port 0 it is the address
// that Envoy found in X-Forwarded-For. With use_remote_address Envoy appends the address of the
// connection to X-Forwarded-For, or its own address if the connection is local. The last element of
// the chain is then not part of what the client's proxies sent, so address removes it. If
// source.address is not the connection's address, address uses the removed element instead.
//
// Without use_remote_address Envoy appends nothing, and source.address is the last address in
// X-Forwarded-For. A client that can connect to such an Envoy can choose that address. A Unix
// socket has no address.
func (a *attributes) address(h Host, appended bool) {
	text, _ := h.Property(sourceAddress...)
	a.origin = hash(a.origin, text)
	source, port := addrOf(text)
	a.ask.Peer, a.ask.Remote = source, source
	i, ok := slices.BinarySearch(a.view.Inputs.Headers, forwarded)
	if !ok || !appended || !source.IsValid() || !a.ask.Headers[i].Given {
		return
	}
	chain := a.ask.Headers[i].Text
	comma := strings.LastIndexByte(chain, ',')
	last, _ := addrOf(strings.TrimSpace(chain[comma+1:]))
	switch {
	case port != 0 && last != source && !source.IsLoopback():
		return // Envoy did not append it: skip_xff_append
	case port == 0 && (last == source || !last.IsValid()):
		return // Envoy did not append an address here either
	case port == 0:
		a.ask.Remote = last
	}
	a.ask.Headers[i] = wire.Value{Text: chain[:max(0, comma)], Given: comma >= 0}
}

// addrOf reads an address with or without a port. port is 0 if there is none, and the result is the
// zero Addr if the text is no address. An IPv6 address has brackets if and only if a port follows.
func addrOf(text string) (addr netip.Addr, port uint16) {
	if colon := strings.LastIndexByte(text, ':'); colon > 0 {
		host, bracketed := text[:colon], false
		if inner, opened := strings.CutPrefix(host, "["); opened && strings.HasSuffix(inner, "]") {
			host, bracketed = inner[:len(inner)-1], true
		}
		n, ok := slim.ParseWhole(text[colon+1:])
		if ok && n <= math.MaxUint16 && bracketed == (strings.IndexByte(host, ':') >= 0) {
			text, port = host, uint16(n)
		}
	}
	return core.ParseAddr(text), port
}
