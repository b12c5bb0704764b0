// SPDX-License-Identifier: Apache-2.0

package status

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// Bounds on the requests of clients for their own limits. Each such request costs a call of the
// store.
const (
	// UnderMax bounds the concurrent requests.
	UnderMax = 64
	// EachMax bounds the requests per second from one IPv4 address or one IPv6 /64 network. Some
	// addresses share a bound.
	EachMax = 50
	shares  = 4096
)

// Bounds count the requests of clients for their own limits. Create one with [NewBounds]. The type
// is safe for concurrent use.
type Bounds struct {
	seed  maphash.Seed
	under atomic.Int64
	// An element of each has a second in its upper half, and the number of requests in that second
	// in its lower half.
	each [shares]atomic.Uint64
}

// NewBounds returns bounds that have counted nothing.
func NewBounds() *Bounds { return &Bounds{seed: maphash.MakeSeed()} }

// Enter counts a request from an address. If the request is beyond a bound, the result ok is false,
// and busy is true if too many requests are under way. Otherwise [Bounds.Leave] must follow.
func (b *Bounds) Enter(addr netip.Addr, now time.Time) (ok, busy bool) {
	// this comes first, so that one address cannot occupy the places of other addresses
	if !b.admits(addr, now) {
		return false, false
	}
	if b.under.Add(1) > UnderMax {
		b.Leave()
		return false, true
	}
	return true, false
}

// Leave ends a request.
func (b *Bounds) Leave() { b.under.Add(-1) }

// Bounds.admits counts a request from an address, and reports whether it is within the bound.
func (b *Bounds) admits(addr netip.Addr, now time.Time) bool {
	if addr = addr.WithZone(""); addr.Is6() && !addr.Is4In6() {
		prefix, _ := addr.Prefix(64) // 64 is a valid length
		addr = prefix.Addr()
	}
	share := &b.each[maphash.Comparable(b.seed, addr.Unmap())%shares]
	second := uint64(uint32(now.Unix())) << 32
	for {
		before := share.Load()
		next := second | 1
		if before&^(1<<32-1) == second {
			next = before + 1
		}
		if next&(1<<32-1) > EachMax {
			return false
		}
		if share.CompareAndSwap(before, next) {
			return true
		}
	}
}
