// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/internal/test/request"
)

// TestAppendAddrAgreesWithPrefixes: keys spell an address prefix as netip does, no matter which
// 16-bit groups are zero.
func TestAppendAddrAgreesWithPrefixes(t *testing.T) {
	rnd := request.NewRandom(t)
	for range 20_000 {
		var a [16]byte
		for i := 0; i < len(a); i += 2 {
			group := []uint16{0, 0, 1, 0x20, 0x300, 0xffff, uint16(rnd.Uint32())}[rnd.IntN(7)]
			a[i], a[i+1] = byte(group>>8), byte(group)
		}
		addr := netip.AddrFrom16(a).Unmap()
		bits := 1 + rnd.IntN(addr.BitLen())
		want := netip.PrefixFrom(addr, bits).Masked().String()
		if bits == addr.BitLen() {
			want = addr.String()
		}
		if got := string(identify.AppendAddr([]byte("x"), addr, identify.PrefixBits{V4: bits, V6: bits})); got != "x"+want {
			t.Fatalf("%s of %d bits: %q, want %q", addr, bits, got[1:], want)
		}
	}
}
