// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// forwarded is the header that proxies write addresses in.
const forwarded = "X-Forwarded-For"

var sourceAddress = []string{"source", "address"}

// address finds the addresses.
//
// source.address is that of the connection, with its port; or, with port 0, the one that Envoy was told to find in
// X-Forwarded-For. With use_remote_address Envoy has added the connection's address at the end of X-Forwarded-For, or, if
// that is of this machine, its own in its place. A chain of addresses ends with the connection's anyway, so it is taken out
// there; and where source.address is not it, that is where it is found.
//
// Without use_remote_address nothing was added, and source.address is the last that X-Forwarded-For names: who can connect
// to such an Envoy can choose it. Over a Unix socket there is none.
func (a *attributes) address(h Host, appended bool) {
	text, _ := h.Property(sourceAddress...)
	a.origin = hash(a.origin, text)
	source, port := addrOf(text)
	a.ask.Peer, a.ask.Remote = source, source
	i, ok := slices.BinarySearch(a.view.Reads.Headers, forwarded)
	if !ok || !appended || !source.IsValid() || !a.ask.Headers[i].Given {
		return
	}
	chain := a.ask.Headers[i].Text
	comma := strings.LastIndexByte(chain, ',')
	last, _ := addrOf(strings.TrimSpace(chain[comma+1:]))
	switch {
	case port != 0 && last != source && !source.IsLoopback():
		return // it was not added: skip_xff_append
	case port == 0 && (last == source || !last.IsValid()):
		return // nor was it here
	case port == 0:
		a.ask.Remote = last
	}
	a.ask.Headers[i] = wire.Value{Text: chain[:max(0, comma)], Given: comma >= 0}
}

// addrOf reads an address with or without a port, which is 0 then; the zero Addr for what is none. With a port an IPv6 address is in
// brackets, and only then.
func addrOf(text string) (addr netip.Addr, port uint16) {
	if colon := strings.LastIndexByte(text, ':'); colon > 0 {
		host, bracketed := text[:colon], false
		if inner, opened := strings.CutPrefix(host, "["); opened && strings.HasSuffix(inner, "]") {
			host, bracketed = inner[:len(inner)-1], true
		}
		n, ok := core.ParseWhole(text[colon+1:])
		if ok && n <= math.MaxUint16 && bracketed == (strings.IndexByte(host, ':') >= 0) {
			text, port = host, uint16(n)
		}
	}
	addr, _ = netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), port
}
