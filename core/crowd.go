// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
)

// witnessesMax is how many rules' own requests [Compile] tries: where rules share no part that the index can use, each try
// costs a comparison with every rule.
const witnessesMax = 1_000

// findCrowd looks for a request that would meet more limits than one call of a store takes. Whether there is one cannot be
// told from the rules in general, for their headers may exclude each other or not; so it tries for each rule, or for
// evenly chosen ones if there are many, a request that the rule is for, of a client without and with each tier that has
// more limits than others.
func (rs *Ruleset) findCrowd(p *Policy) Problems {
	most := 1 // a penalty is one
	for _, index := range rs.enabled {
		r := &rs.rules[index]
		limits := len(r.limits)
		for _, set := range r.tiers {
			limits = max(limits, len(set.limits))
		}
		most += limits
	}
	if most <= ChecksMax {
		return nil
	}
	tried := *rs
	tried.disabled, tried.exempt, tried.block, tried.blocks = false, nil, nil, false
	tried.witnessed = new(Identity)
	var plan Plan
	tiers := append(rs.longTiers(), "")
	for i := 0; i < len(rs.enabled); i += 1 + len(rs.enabled)*len(tiers)/witnessesMax {
		index := rs.enabled[i]
		w := witness{&p.Rules[index].Match}
		for _, tier := range tiers {
			who := w.who()
			if tier != "" && len(w.match.Tier) == 0 {
				who.Tier = tier
			}
			*tried.witnessed = who
			plan.Reset()
			plan.Add(&tried, w)
			if plan.refusal == refusalCrowded {
				return Problems{w.crowded(ruleAt(int(index)), rs.rules[index].name, tier)}
			}
		}
	}
	return nil
}

// longTiers returns the tiers for which a rule has more limits than for clients without a tier.
func (rs *Ruleset) longTiers() []string {
	long := map[string]bool{}
	for i := range rs.rules {
		for tier, set := range rs.rules[i].tiers {
			if len(set.limits) > len(rs.rules[i].limits) {
				long[tier] = true
			}
		}
	}
	return sortedKeys(long)
}

// crowded is the problem of a rule that the witness is for.
func (w witness) crowded(at, rule, tier string) Problem {
	of := ""
	if tier != "" {
		of = fmt.Sprintf(" of a client of tier %q", tier)
	}
	return Problem{Path: at, Value: rule,
		Why: fmt.Sprintf("stands beside so many others that %s %s%s meets more than %d limits, which is what a store "+
			"is asked at once", w.Method(), w.Path(), of, ChecksMax),
		Remedy: "narrow some matches, or put rules that replace each other in a group"}
}

// witness is a request that a match is for.
type witness struct{ match *Match }

func (w witness) Path() string {
	if len(w.match.Path) == 0 {
		return "/"
	}
	return strings.ReplaceAll(strings.ReplaceAll(w.match.Path[0], "**", "x"), "*", "x")
}

// who has everything that a client can have, so that no rule is skipped for want of it.
func (w witness) who() Identity {
	one := func(of []string) string {
		if len(of) == 0 {
			return "x"
		}
		return of[0]
	}
	return Identity{Kind: "user", ID: one(w.match.User), User: one(w.match.User), APIKey: one(w.match.APIKey),
		Tier: one(w.match.Tier), Tenant: one(w.match.Tenant)}
}

func (w witness) Query() string      { return "" }
func (w witness) Remote() netip.Addr { return w.Peer() }
func (w witness) Now() Micros        { return 0 }

func (w witness) Method() string {
	if len(w.match.Method) == 0 {
		return "GET"
	}
	return w.match.Method[0]
}

func (w witness) Host() string {
	if len(w.match.Host) == 0 {
		return "example.com"
	}
	return strings.Replace(w.match.Host[0], "*", "x", 1)
}

// Header has every header, so that no rule is skipped for want of one.
func (w witness) Header(name string) (value string, ok bool) {
	for _, h := range w.match.Header {
		if equalASCII(h.Name, name) && len(h.Values) > 0 {
			return strings.ReplaceAll(h.Values[0], "*", "x"), true
		}
	}
	return "x", true
}

func (w witness) Peer() netip.Addr {
	if len(w.match.IP) == 0 {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return w.match.IP[0].Addr()
}

// Attr has every attribute, as Header has every header.
func (w witness) Attr(name string) (value string, ok bool) {
	for _, a := range w.match.Attr {
		if a.Name == name && len(a.Values) > 0 {
			return strings.ReplaceAll(a.Values[0], "*", "x"), true
		}
	}
	return "x", true
}
