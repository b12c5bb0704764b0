// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/racescale"
)

// drawnCase is a random policy and client. The methods of drawnCase derive the expected result from
// the text of docs/reference/policy.md.
type drawnCase struct {
	*rand.Rand
	policy policy.Policy
	who    policy.Identity
	state  policy.CredentialState
	own    map[string]policy.LimitSet
	asks   *client
}

const drawnNow = 1_700_000_000 * counter.Second

func (d *drawnCase) chance(percent int) bool { return d.IntN(100) < percent }

// oneOrNone returns one of the texts, or none.
func (d *drawnCase) oneOrNone(texts ...string) []string {
	if d.chance(70) {
		return nil
	}
	return []string{texts[d.IntN(len(texts))]}
}

func (d *drawnCase) set(t *testing.T) policy.LimitSet {
	if d.chance(20) {
		return policy.LimitSet{Unlimited: true}
	}
	return policy.LimitSet{Limits: limittest.All(t, fmt.Sprintf("%d/1m", 1+d.IntN(1000)))}
}

func (d *drawnCase) rule(t *testing.T, i int) policy.Rule {
	r := policy.Rule{Name: fmt.Sprint("r", i), Disabled: d.chance(8), Match: policy.Match{Path: d.oneOrNone("/a", "/b"), Method: d.oneOrNone("GET", "PUT"),
		Tier: d.oneOrNone("gold", "silver"), User: d.oneOrNone("u", "v"), Tenant: d.oneOrNone("t")}}
	for _, size := range d.oneOrNone("small", "s*", "large", "small, large") {
		r.Match.Header = []policy.HeaderMatch{{Name: "X-Size", Values: []string{size}}}
	}
	if r.Group = ""; d.policy.Enforce == policy.EnforceAll && d.chance(70) {
		r.Group = []string{"g", "h"}[d.IntN(2)]
	}
	if grouped := r.Group != "" || d.policy.Enforce == policy.EnforceFirst; grouped {
		r.Priority = d.IntN(3) - 1
		if r.Action = policy.ActionReject; d.chance(15) {
			r.Action = policy.ActionAllow
			return r
		}
	}
	if d.chance(4) {
		r.Action, r.Priority = policy.ActionBlock, 0
		return r
	}
	r.Limits = limittest.All(t, fmt.Sprintf("%d/1m", 1+d.IntN(1000)))
	r.Per = [][]policy.Dimension{nil, {{Kind: policy.PerUser}}, {{Kind: policy.PerTenant}}, {{Kind: policy.PerHost}}, {{Kind: policy.PerTenant}, {Kind: policy.PerClient}}}[d.IntN(5)]
	if len(r.Per) > 0 && r.Per[0].Kind != policy.PerHost {
		r.Missing = []policy.Missing{policy.MissingClient, policy.MissingShare, policy.MissingSkip, policy.MissingDeny}[d.IntN(4)]
	}
	for _, tier := range []string{"gold", "silver"} {
		if len(r.Match.Tier) == 0 && d.chance(40) {
			if r.Tiers == nil {
				r.Tiers = map[string]policy.LimitSet{}
			}
			r.Tiers[tier] = d.set(t)
		}
	}
	return r
}

func (d *drawnCase) list() (list []policy.Listed) {
	for d.chance(15) {
		e := policy.Listed{User: d.oneOrNone("u", "v"), Tier: d.oneOrNone("gold"), Tenant: d.oneOrNone("t"),
			Until: []counter.Micros{0, 0, drawnNow - 1, drawnNow, drawnNow + 1}[d.IntN(5)]}
		if d.chance(30) || e.Clients() == 0 {
			e.IP = []netip.Prefix{netip.MustParsePrefix([]string{"192.0.2.0/24", "198.51.100.0/24"}[d.IntN(2)])}
		}
		list = append(list, e)
	}
	return list
}

func draw(t *testing.T, random *rand.Rand) *drawnCase {
	d := &drawnCase{Rand: random, own: map[string]policy.LimitSet{}}
	if d.chance(30) {
		d.policy.Enforce = policy.EnforceFirst
	}
	d.policy.Name, d.policy.Exempt, d.policy.Block = "n", d.list(), d.list()
	for i := range 1 + d.IntN(6) {
		r := d.rule(t, i)
		if d.policy.Rules = append(d.policy.Rules, r); d.chance(15) {
			d.own[r.Name] = d.set(t)
		}
	}
	if d.chance(20) {
		d.own["*"] = d.set(t)
	}
	user := []string{"u", "v", "w"}[d.IntN(3)]
	d.who = policy.Identity{Kind: "user", ID: user, User: user, Tier: strings.Join(d.oneOrNone("gold", "silver"), ""),
		Tenant: strings.Join(d.oneOrNone("t"), "")}
	d.state = []policy.CredentialState{policy.CredentialValid, policy.CredentialValid, policy.CredentialExpired, policy.CredentialRevoked}[d.IntN(4)]
	d.asks = get("192.0.2.7", []string{"/a", "/b", "/c"}[d.IntN(3)])
	d.asks.method, d.asks.now = []string{"GET", "PUT"}[d.IntN(2)], drawnNow
	d.asks.header = map[string]string{"Authorization": "Bearer x"}
	for _, size := range d.oneOrNone("small", "large", "small, large", "large, small", "small, smaller", "small,") {
		d.asks.header["X-Size"] = size
	}
	return d
}

// knownIdentity returns the client: the owner of a valid credential, otherwise the address, or
// nothing if the credential is denied.
func (d *drawnCase) knownIdentity() policy.Identity {
	switch d.state {
	case policy.CredentialValid:
		return d.who
	case policy.CredentialRevoked:
		return policy.Identity{}
	}
	return policy.Identity{Kind: "ip", ID: "192.0.2.7"}
}

func oneOf(list []string, text string) bool { return len(list) == 0 || slices.Contains(list, text) }

// matchedSizes returns how many elements of the header X-Size the match lists, and the number of
// elements. If the match lists the whole header, or none, all elements count as listed.
func (d *drawnCase) matchedSizes(m *policy.Match) (listed, all int) {
	value, ok := d.asks.header["X-Size"]
	if len(m.Header) == 0 || ok && m.Header[0].Values[0] == value {
		return 1, 1
	}
	for element := range strings.SplitSeq(value, ",") {
		prefix, starred := strings.CutSuffix(m.Header[0].Values[0], "*")
		element = strings.TrimSpace(element)
		if ok && (element == prefix || starred && strings.HasPrefix(element, prefix)) {
			listed++
		}
		all++
	}
	return listed, all
}

// drawnCase.excludes reports whether the rule, which matches, does so for every element of its
// header. Otherwise it excludes no other rule of its group.
func (d *drawnCase) excludes(r *policy.Rule) bool {
	listed, all := d.matchedSizes(&r.Match)
	return listed == all
}

func (d *drawnCase) matches(m *policy.Match, who policy.Identity) bool {
	listed, _ := d.matchedSizes(m)
	return listed > 0 && oneOf(m.Path, d.asks.path) && oneOf(m.Method, d.asks.method) && oneOf(m.Tier, who.Tier) && oneOf(m.User, who.User) &&
		oneOf(m.Tenant, who.Tenant)
}

func (d *drawnCase) isListed(list []policy.Listed, who policy.Identity) bool {
	return slices.ContainsFunc(list, func(e policy.Listed) bool {
		return (e.Until == 0 || drawnNow < e.Until) && (len(e.IP) > 0 && e.IP[0].Contains(d.asks.peer) ||
			slices.Contains(e.User, who.User) || slices.Contains(e.Tier, who.Tier) || slices.Contains(e.Tenant, who.Tenant))
	})
}

// lacksProperty reports whether the client lacks a property by which the rule counts.
func lacksProperty(r *policy.Rule, who policy.Identity) bool {
	return slices.ContainsFunc(r.Per, func(d policy.Dimension) bool {
		return d.Kind == policy.PerUser && who.User == "" || d.Kind == policy.PerTenant && who.Tenant == ""
	})
}

// drawnCase.precedes reports whether rule i wins against rule j of its group.
func (d *drawnCase) precedes(i, j int) bool {
	a, b := &d.policy.Rules[i], &d.policy.Rules[j]
	special := func(r *policy.Rule) (n int) {
		if len(r.Match.Path)+len(r.Match.Method) > 0 {
			n = 2
		}
		if len(r.Match.Tier) > 0 {
			n++
		}
		return n
	}
	switch {
	case a.Priority != b.Priority:
		return a.Priority < b.Priority
	case special(a) != special(b):
		return special(a) > special(b)
	}
	return i < j
}

// drawnCase.answer returns the result that docs/reference/policy.md prescribes, in the notation of
// testdata/precedence.txt.
func (d *drawnCase) answer() string {
	who, matching := d.knownIdentity(), []int{}
	if d.isListed(d.policy.Block, who) {
		return "blocked"
	}
	for i := range d.policy.Rules {
		if r := &d.policy.Rules[i]; !r.Disabled && d.matches(&r.Match, who) && (r.Action != policy.ActionAllow || d.excludes(r)) {
			matching = append(matching, i)
		}
	}
	blocking := slices.IndexFunc(matching, func(i int) bool { return d.policy.Rules[i].Action == policy.ActionBlock })
	switch {
	case blocking >= 0:
		return "blocked:" + d.policy.Rules[matching[blocking]].Name
	case len(matching) == 0:
		return "none"
	case d.state == policy.CredentialRevoked:
		return "unauthorized"
	}
	competing := slices.DeleteFunc(matching, func(i int) bool {
		return d.policy.Rules[i].Missing == policy.MissingSkip && lacksProperty(&d.policy.Rules[i], who)
	})
	var said []string
	exempt := d.isListed(d.policy.Exempt, who)
	for _, i := range competing {
		r := &d.policy.Rules[i]
		loses := (r.Group != "" || d.policy.Enforce == policy.EnforceFirst) && slices.ContainsFunc(competing, func(j int) bool {
			return d.policy.Rules[j].Group == r.Group && d.precedes(j, i) && d.excludes(&d.policy.Rules[j])
		})
		if !loses {
			said = append(said, r.Name+":"+d.limitOf(r, who, exempt))
		}
	}
	if denied := slices.ContainsFunc(said, func(s string) bool { return strings.HasSuffix(s, ":missing") }); denied {
		for i, s := range said {
			if !strings.HasSuffix(s, ":missing") && !strings.HasSuffix(s, ":exempt") {
				said[i] = s[:strings.IndexByte(s, ':')] + ":uncharged"
			}
		}
	}
	if len(said) == 0 {
		return "none"
	}
	return strings.Join(said, " ")
}

func (d *drawnCase) limitOf(r *policy.Rule, who policy.Identity, exempt bool) string {
	if exempt || r.Action == policy.ActionAllow {
		return "exempt"
	}
	set, tiered := r.Tiers[who.Tier]
	if !tiered {
		set = policy.LimitSet{Limits: r.Limits}
	}
	if d.state == policy.CredentialValid {
		star, all := d.own["*"]
		if perClient := len(r.Per) == 0 || r.Per[0].Kind == policy.PerUser || len(r.Per) == 2; all && perClient {
			set = star
		}
		if mine, named := d.own[r.Name]; named {
			set = mine
		}
	}
	switch {
	case set.Unlimited:
		return "unlimited"
	case r.Missing == policy.MissingDeny && lacksProperty(r, who):
		return "missing"
	}
	return set.Limits[0].String()
}

// TestPrecedenceAgainstOracle compares 20,000 random policies and requests with a literal
// implementation of docs/reference/policy.md.
func TestPrecedenceAgainstOracle(t *testing.T) {
	random, answers := seed.Random(t), map[string]int{}
	for range racescale.Fewer(20_000) {
		d := draw(t, random)
		who := d.who
		var err error
		if who.Overrides, err = policy.NewOverrides(d.own); err != nil {
			t.Fatal(err)
		}
		d.policy.Identify = []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: &knownClient{&who, d.state}}, {Kind: policy.IdentifyIP}}
		rs := mustCompile(t, d.policy)
		plan, decision := newCounters().ask(t, d.asks, rs)
		want, got := d.answer(), new(precedence).answer(plan, &decision)
		if got != want {
			t.Fatalf("%+v\nlimits of its own %v, credential %s, %s %s of\n%+v\n got %s\nwant %s", d.who, d.own, d.state, d.asks.method,
				d.asks.path, d.policy, got, want)
		}
		for _, said := range strings.Fields(want) {
			answers[said[strings.IndexByte(said, ':')+1:]]++
		}
	}
	for _, kind := range []string{"none", "blocked", "unauthorized", "exempt", "unlimited", "missing", "uncharged"} {
		if answers[kind] == 0 {
			t.Errorf("none was %s", kind)
		}
	}
}
