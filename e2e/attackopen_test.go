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

// All fronts whose requests are parsed by Go, and all that count in a store that may be late.
var (
	parsedByGo = []string{caddyMemory, caddyRedis, bridgeJSON}
	inCaddy    = []string{caddyMemory, caddyRedis}
	overStore  = []string{caddyRedis, envoyFilter, envoyRLS, bridgeJSON}
	rude       = []string{rudeCaddy, rudeFilter}
)

// openAttacks are rows that are known not to hold, by front: what they show is printed and fails nothing. The change that
// closes one takes it out.
var openAttacks = map[string][]string{
	// A request target that Go takes for opaque is not matched by what is served.
	"opaque request targets":                    inCaddy,
	"opaque request targets of what is blocked": inCaddy,
	"opaque request targets of a host":          inCaddy,
	// %2F is a character to the matcher and a slash to some servers, such as nginx.
	"encoded slashes in a path": limiters,
	// net/http keeps a space for each empty line that is folded behind a field; upstreams cut them off.
	"a header twice, folded, spelt otherwise":          parsedByGo,
	"a header with empty lines folded behind it":       parsedByGo,
	"a good API key with empty lines folded behind it": parsedByGo,
	// The deadline counts waiting in queues of ours, and on_error lets pass what it has run out for.
	"burst of 100 connections":            overStore,
	"burst of 1,000 connections":          overStore,
	"burst of 4,000 connections":          overStore,
	"burst of 10,000 connections":         overStore,
	"burst of 20 x 200 streams":           overStore,
	"burst of 32 x 240 streams":           overStore,
	"burst of 4 x 500 streams":            overStore,
	"burst of 4 x 1,000 streams":          overStore,
	"burst of 42 x 240 streams":           overStore,
	"burst of 4 x 100 streams of HTTP 3":  overStore,
	"burst of 20 x 100 streams of HTTP 3": overStore,
	"steady load over 16 connections":     overStore,
	// Paths and tokens that cost more than the deadline.
	"long paths that are slow to match":                   overStore,
	"random signatures of ES384 over 200 connections":     overStore,
	"random signatures of RS256 by a key of 4,096 bits":   overStore,
	"random signatures from 20 addresses":                 overStore,
	"tokens of 8 KB and of 60 KB":                         overStore,
	"tokens with a kid that nobody has":                   overStore,
	"tokens that are none":                                overStore,
	"API keys that nobody has":                            overStore,
	"a bearer token behind a tab, or in another spelling": {caddyMemory, caddyRedis, envoyFilter},
	// The protocol of the rate limit service takes only UTF-8.
	"bytes that are not UTF-8 in a header":    {envoyRLS},
	"bytes that are not UTF-8 in a key":       {envoyRLS},
	"bytes that are not UTF-8 over HTTP 2":    {envoyRLS},
	"bytes that are not UTF-8 in the query":   {envoyRLS},
	"prefaces at the bridge's ports":          {"--rls-listen"},
	"a page whose name leads to this machine": {"bridge"},
	// What a client leaves unfinished is given back, or costs the default.
	"unfinished bodies under refund_on":       inCaddy,
	"unfinished bodies under count_if":        inCaddy,
	"streams that are left before their cost": settling,
	"streams in a coding that is not read":    settling,
	// Without Redis on_error: allow lets everything through.
	"a Redis that says a list of two billion":         rude,
	"a Redis that says a line without end":            rude,
	"a Redis that says a negative length":             rude,
	"a Redis that says a number":                      rude,
	"a Redis that says a string of two billion bytes": rude,
	"a Redis that says an empty list":                 rude,
	"a Redis that says an error":                      rude,
	"a Redis that says garbage":                       rude,
	"a Redis that says half":                          rude,
	"a Redis that says lists in lists":                rude,
	"a Redis that says never":                         rude,
	"a Redis that says nil":                           rude,
	"a Redis that says numbers out of bounds":         rude,
	"a Redis that says OK":                            rude,
	"a Redis that says too late":                      rude,
	"a Redis that says twice":                         rude,
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
