// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// A block or an exemption of a network with a prefix shorter than these needs the admin role,
// because it concerns a large part of all addresses. A network of IPv4 addresses in IPv6 form is
// not a valid name.
const (
	wideBelow4 = 8
	wideBelow6 = 19
)

// wideNeeds is the part of the description of an operation that can block or exempt a network.
var wideNeeds = fmt.Sprintf(" A block or an exemption of a network wider than /%d (IPv4) or /%d (IPv6) needs the role admin.", wideBelow4, wideBelow6)

// checkConcern returns the answer to a caller who may not block or exempt the client because the
// client is a wide network. The ledger rejects invalid names.
func checkConcern(by requester, client string) error {
	name, err := directory.ParseName(client)
	if err != nil || name.Kind != directory.KindNetwork {
		return nil
	}
	network, err := directory.ParseNetwork(name.ID)
	if err != nil {
		return nil
	}
	least := wideBelow6
	if network.Addr().Is4() {
		least = wideBelow4
	}
	if network.Bits() >= least || by.role.May(ledger.Admin) {
		return nil
	}
	return huma.Error403Forbidden(describeDenial(by.role, ledger.Admin) + fmt.Sprintf("; the network %q is wider than /%d: name smaller networks, "+
		"or ask an admin", name.ID, least))
}
