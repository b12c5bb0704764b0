// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"
)

// attacks are all rows.
var attacks = slices.Concat(bursts, targetAttacks, addressAttacks, tokenAttacks, bodyAttacks, frameAttacks, rudeAttacks)

// bridgeAttacks are what tests of their own attack the bridge with.
var bridgeAttacks = []string{"prefaces at the bridge's ports", "a page whose name leads to this machine"}

// openAttacks are rows that are known not to hold, by front: what they show is printed and fails nothing. The change that
// closes one takes it out.
var openAttacks = map[string][]string{
	// %2F is a character to the matcher and a slash to some servers, such as nginx.
	"encoded slashes in a path": limiters,
	// net/http keeps a space for each empty line that is folded behind a field; upstreams cut them off.
	"a header twice, folded, spelt otherwise":    {caddyMemory, caddyRedis, bridgeJSON},
	"a header with empty lines folded behind it": {caddyMemory, caddyRedis, bridgeJSON},
	// What a client does not read of a response costs the default.
	"streams that are left before their cost": settling,
	"streams in a coding that is not read":    settling,
}

func isOpen(name, front string) bool { return slices.Contains(openAttacks[name], front) }

// TestOpenAttacksAreRows: a name that no row has would hide nothing, and say that something is open.
func TestOpenAttacksAreRows(t *testing.T) {
	for name := range openAttacks {
		if !slices.Contains(bridgeAttacks, name) && !slices.ContainsFunc(attacks, func(a attack) bool { return a.name == name }) {
			t.Errorf("%q is open, and no row", name)
		}
	}
}
