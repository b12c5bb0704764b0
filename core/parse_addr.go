// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/internal/match"
)

// ParseAddr reads an IP address. The result is in the form in which addresses are compared: an IPv4
// address mapped into IPv6 becomes IPv4, and an IPv6 zone is dropped. The result is the zero Addr
// if the text is no address.
//
// ParseAddr accepts what [netip.ParseAddr] accepts, but takes 20 KB less of the filter in Envoy.
func ParseAddr(text string) netip.Addr {
	text, zone, zoned := strings.Cut(text, "%")
	addr, ok := match.ParseAddr(text)
	if !ok || zoned && (zone == "" || addr.Is4()) {
		return netip.Addr{}
	}
	return addr.Unmap()
}
