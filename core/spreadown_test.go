// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"
)

// crowd is clients with limits of their own, or of a tier, who are counted together.
type crowd struct {
	*fleet
	who *knownClient
	rs  *Ruleset
	as  []*Identity
}

func newCrowd(t *testing.T, r Rule, as ...*Identity) *crowd {
	t.Helper()
	c := &crowd{fleet: newFleet(t, 0, r), who: &knownClient{&Identity{}, CredentialValid}, as: as}
	r.Name, r.PerNone = "all", true
	c.rs = mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: c.who}}, Rules: []Rule{r}})
	c.nodes = []*Ruleset{c.rs}
	return c
}

// asks makes a request of one of the clients.
func (c *crowd) asks(who int, path string) bool {
	*c.who.identity = *c.as[who]
	a := get("192.0.2.1", path)
	a.header = map[string]string{"Authorization": "Bearer x"}
	return c.ask(0, a)
}

// TestShardsOfOwnLimitsNeverOver: who has limits of their own under a rule that counts them together with others takes no more,
// and leaves others no more, than the highest of all these limits; and a client alone takes no more than its own.
func TestShardsOfOwnLimitsNeverOver(t *testing.T) {
	rng := randomSource(t)
	for range 300 {
		shards, algorithm := int64(2+rng.IntN(15)), FixedWindow+Algorithm(rng.IntN(4))
		count, owns, alone := shards*(1+rng.Int64N(20)), 1+rng.IntN(3), rng.IntN(3) == 0
		limit := func(count int64) Limit {
			l, err := NewLimit(algorithm, count, Hour, 0)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		r := Rule{Shards: int(shards), Limits: []Limit{limit(count)}}
		if most := count / shards; rng.IntN(2) == 0 {
			r.Cost = []Cost{{N: 1 + rng.Int64N(most), Match: Match{Path: []string{"/dear"}}}}
		}
		as, highest := []*Identity{{Kind: "user", ID: "u"}}, count
		if alone {
			as, highest = nil, 0
		}
		for range owns {
			own := limit(1 + rng.Int64N(2*count))
			o, err := NewOverrides(map[string]LimitSet{"all": {Limits: []Limit{own}}})
			if err != nil {
				t.Fatal(err)
			}
			as, highest = append(as, &Identity{Kind: "user", ID: "v", Overrides: o}), max(highest, own.count)
		}
		c := newCrowd(t, r, as...)
		for range 5 * highest {
			if rng.IntN(50) == 0 {
				c.now += Micros(rng.Int64N(int64(Hour) / 4))
			}
			c.asks(rng.IntN(len(as)), []string{"/", "/dear"}[rng.IntN(2)])
		}
		c.had.limit = limit(highest)
		c.keeps(c.had.limit.String())
	}
}

// TestShardsByTurnsWithOtherLimits: clients whose limits refuse where the rule's do not take no turns from others, who find all
// of the limit.
func TestShardsByTurnsWithOtherLimits(t *testing.T) {
	low := &Identity{Kind: "user", ID: "low", Overrides: own(t, map[string]string{"all": "80/1h fw"})}
	tier := &Identity{Kind: "user", ID: "tier", Tier: "free"}
	for what, other := range map[string]*Identity{"own": low, "tier": tier} {
		c := newCrowd(t, Rule{Shards: 8, Limits: limits(t, "800/1h fw"),
			Tiers: map[string]LimitSet{"free": {Limits: limits(t, "80/1h fw")}}}, other, &Identity{Kind: "user", ID: "u"})
		for turn := range 1600 {
			c.asks(turn%2, "/")
		}
		if n := len(c.had.used); n != 800 {
			t.Errorf("%s: %d of 800 let through", what, n)
		}
	}
}
