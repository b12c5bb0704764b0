// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// ownClients is a set of clients that share a counter and have their own limits or those of a tier.
type ownClients struct {
	*fleet
	who *knownClient
	rs  *Ruleset
	as  []*policy.Identity
}

func newOwnClients(t *testing.T, r policy.Rule, as ...*policy.Identity) *ownClients {
	t.Helper()
	c := &ownClients{fleet: newFleet(t, 0, r), who: &knownClient{&policy.Identity{}, policy.CredentialValid}, as: as}
	r.Name, r.PerNone = "all", true
	c.rs = mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: c.who}}, Rules: []policy.Rule{r}})
	c.nodes = []*Ruleset{c.rs}
	return c
}

// askAs sends a request as one of the clients.
func (c *ownClients) askAs(who int, path string) bool {
	*c.who.identity = *c.as[who]
	a := get("192.0.2.1", path)
	a.header = map[string]string{"Authorization": "Bearer x"}
	return c.ask(0, a)
}

// TestShardsOfOwnLimitsNeverOver: a client may have its own limit under a rule that counts it
// together with others. All clients together get no more than the highest of these limits, and each
// client gets no more than its own.
func TestShardsOfOwnLimitsNeverOver(t *testing.T) {
	rng := seed.Random(t)
	for range 300 {
		shards, algorithm := int64(2+rng.IntN(15)), counter.FixedWindow+counter.Algorithm(rng.IntN(4))
		count, owns, alone := shards*(1+rng.Int64N(20)), 1+rng.IntN(3), rng.IntN(3) == 0
		limit := func(count int64) counter.Limit {
			l, err := counter.NewLimit(algorithm, count, counter.Hour, 0)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		r := policy.Rule{Shards: int(shards), Limits: []counter.Limit{limit(count)}}
		if most := count / shards; rng.IntN(2) == 0 {
			r.Cost = []policy.Cost{{N: 1 + rng.Int64N(most), Match: policy.Match{Path: []string{"/dear"}}}}
		}
		as, highest := []*policy.Identity{{Kind: "user", ID: "u"}}, count
		if alone {
			as, highest = nil, 0
		}
		for range owns {
			own := limit(1 + rng.Int64N(2*count))
			o, err := policy.NewOverrides(map[string]policy.LimitSet{"all": {Limits: []counter.Limit{own}}})
			if err != nil {
				t.Fatal(err)
			}
			as, highest = append(as, &policy.Identity{Kind: "user", ID: "v", Overrides: o}), max(highest, own.Count())
		}
		c := newOwnClients(t, r, as...)
		for range 5 * highest {
			if rng.IntN(50) == 0 {
				c.now += counter.Micros(rng.Int64N(int64(counter.Hour) / 4))
			}
			c.askAs(rng.IntN(len(as)), []string{"/", "/dear"}[rng.IntN(2)])
		}
		c.had.limit = limit(highest)
		c.wantNeverOver(c.had.limit.String())
	}
}

// TestShardsWithOwnLimits: clients whose own limits deny earlier than the rule's do not use up
// turns of other clients, which get the whole limit.
func TestShardsWithOwnLimits(t *testing.T) {
	low := &policy.Identity{Kind: "user", ID: "low", Overrides: parseOwnLimits(t, map[string]string{"all": "80/1h fw"})}
	tier := &policy.Identity{Kind: "user", ID: "tier", Tier: "free"}
	for what, other := range map[string]*policy.Identity{"own": low, "tier": tier} {
		c := newOwnClients(t, policy.Rule{Shards: 8, Limits: limittest.All(t, "800/1h fw"),
			Tiers: map[string]policy.LimitSet{"free": {Limits: limittest.All(t, "80/1h fw")}}}, other, &policy.Identity{Kind: "user", ID: "u"})
		for turn := range 1600 {
			c.askAs(turn%2, "/")
		}
		if n := len(c.had.used); n != 800 {
			t.Errorf("%s: %d of 800 let through", what, n)
		}
	}
}
