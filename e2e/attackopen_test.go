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
	// So many in flight are more than --calls-max and its queue: the service answers RESOURCE_EXHAUSTED, and Envoy lets pass.
	"burst of 4,000 connections":  {envoyRLS},
	"burst of 10,000 connections": {envoyRLS},
	"burst of 20 x 200 streams":   {envoyRLS},
	"burst of 32 x 240 streams":   {envoyRLS},
	"burst of 42 x 240 streams":   {envoyRLS},
	// Where Redis is late for a part of a burst, the bridge admits beside what Redis admits: 8 of 5 were seen.
	"burst of 1,000 connections": {bridgeJSON},
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
