// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/underrace"
)

// varied is a policy that says something of everything requests are decided by.
func varied(t testing.TB) Policy {
	t.Helper()
	l, path := limits(t, "10/1m", "9/1h burst 11", "100/day"), Match{Path: []string{"/a*", "/b/**"}}
	return Policy{Name: "shop", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Identify: []Identify{{Kind: IdentifyJWT, Verifier: &knownClient{}}, {Kind: IdentifyAPIKey, Verifier: &knownClient{},
			From: []CredentialSource{{Kind: FromQuery, Name: "key"}, {Kind: FromCookie, Name: "k"}}},
			{Kind: IdentifyHeader, Name: "x-a", Unverified: true}, {Kind: IdentifyIP, IPv4Prefix: 24, IPv6Prefix: 56}},
		Tenant: []Source{{Kind: SourceHost, Label: 1}}, Tier: []Source{{Kind: SourceAttr, Name: "x"}},
		User:    []Source{{Kind: SourceHeader, Name: "x-b", Unverified: true}},
		Exempt:  []Listed{{User: []string{"2"}}, {IP: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}, Until: Day}},
		Block:   []Listed{{Tier: []string{"112"}, Reason: "abuse"}},
		Penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{1, 2}},
		Rules: []Rule{
			{Name: "api", Match: path, Limits: l, Per: []Dimension{{Kind: PerClient}, {Kind: PerEndpoint}},
				Tiers: map[string]LimitSet{"1": {Limits: l[:1]}, "12": {Unlimited: true}}, Cost: []Cost{{N: 2, Match: path}, {N: 1}}},
			{Name: "host", Group: "g", Limits: l[:1], Match: Match{Host: []string{"*.example"}, Header: []HeaderMatch{{Name: "x-b"}}},
				Per: []Dimension{{Kind: PerHost}, {Kind: PerMethod}, {Kind: PerIP}, {Kind: PerTenant}}},
			{Name: "zone", Group: "g", Limits: l[:1], Per: []Dimension{{Kind: PerAttr, Name: "y"}}, Missing: MissingSkip,
				Match: Match{Attr: []AttrMatch{{Name: "y", Values: []string{"1*2"}}}}, Replaces: []string{"host"}},
			{Name: "slow", PerNone: true, Limits: l[:1], Action: ActionThrottle, Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 5},
				CostAfter: &CostAfter{JSON: "usage.total", Estimate: 3}, CountIf: []Statuses{{400, 499}}},
			{Name: "many", PerNone: true, Expose: true, Shards: 5, Limits: l[:1]},
			{Name: "no", Action: ActionBlock, Match: Match{Method: []string{"PUT"}}, Response: &Response{Status: 404, Body: "{}"}},
		}}
}

// received returns what becomes of a policy on its way in the compact form, verifiers put back.
func received(t testing.TB, p Policy) Policy {
	t.Helper()
	got, _, err := ReadCompact(p.AppendCompact(nil, "v"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Identify {
		got.Identify[i].Verifier = p.Identify[i].Verifier
	}
	return got
}

// TestAssembleDecidesAsCompile: what was sent decides as what was written.
func TestAssembleDecidesAsCompile(t *testing.T) {
	rnd := newRandom(t)
	policies := []Policy{varied(t)}
	var requests []Attributes
	for len(policies) < underrace.Fewer(200) {
		d := draw(t, rnd.Rand)
		d.policy.Identify = []Identify{{Kind: IdentifyJWT, Verifier: &knownClient{&d.who, d.state}}, {Kind: IdentifyIP}}
		policies, requests = append(policies, d.policy), append(requests, d.asks, rnd.request())
	}
	asked := 0
	for _, p := range policies {
		compiled, err := Compile(p)
		if err != nil {
			continue
		}
		assembled, err := Assemble(received(t, p))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			a := requests[rnd.IntN(len(requests))]
			var want, got Plan
			wanted, decided := decideBy(&want, compiled, a, nil), decideBy(&got, assembled, a, &want)
			for i := range want.checks {
				want.checks[i].Bounds = nil
				if c := &want.checks[i]; c.Whole != nil {
					c.Key, c.Limit, c.Whole = AppendWholeKey(nil, c.Key), c.Whole, nil
				}
			}
			asked += len(want.checks)
			opts := cmp.AllowUnexported(Limit{})
			if diff := cmp.Diff(want.checks, got.checks, opts); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(wanted.fields, decided.fields); diff != "" || wanted.status != decided.status || wanted.body != decided.body {
				t.Fatalf("%+v, want %+v", decided, wanted)
			}
		}
	}
	if asked == 0 {
		t.Error("nothing was asked")
	}
}

// shown is what a client is shown of a decision.
type shown struct {
	status int
	fields Fields
	body   string
}

// decideBy decides a request by results that refuse some of what is asked, or by what another plan was told.
func decideBy(p *Plan, rs *Ruleset, a Attributes, told *Plan) shown {
	p.Reset()
	p.Add(rs, a)
	results := p.Results()
	for i := range results {
		results[i] = Result{Refused: i%3 == 1, Granted: 1, Remaining: 5, Reset: Hour, Wait: Micros(i) * Second}
	}
	if told != nil {
		copy(results, told.AppendTold(nil))
	}
	d := p.Decide()
	return shown{d.Status, p.Headers(&d), string(p.AppendProblem(nil, &d))}
}

// TestAssembleRefusesWhatCannotBeDecided: each of these would make a request panic or count for nothing.
func TestAssembleRefusesWhatCannotBeDecided(t *testing.T) {
	for name, spoil := range map[string]func(p *Policy){
		"a path":            func(p *Policy) { p.Rules[0].Match.Path[0] = "a" },
		"a host":            func(p *Policy) { p.Rules[1].Match.Host[0] = "a:80" },
		"a range":           func(p *Policy) { p.Rules[0].Match.IP = []netip.Prefix{{}} },
		"a cost's match":    func(p *Policy) { p.Rules[0].Cost[0].Match.Path = []string{""} },
		"a cost's range":    func(p *Policy) { p.Rules[0].Cost[0].Trusted = []netip.Prefix{{}} },
		"a cost":            func(p *Policy) { p.Rules[0].Cost[0].N = 0 },
		"an estimate":       func(p *Policy) { p.Rules[3].CostAfter.Estimate = -1 },
		"a retry":           func(p *Policy) { p.Rules[0].RetryAfter = -1 },
		"a jitter":          func(p *Policy) { p.Rules[0].RetryJitter = -2 * Second },
		"a trusted range":   func(p *Policy) { p.TrustedProxies[0] = netip.Prefix{} },
		"hops":              func(p *Policy) { p.TrustedHops = -1 },
		"an exempt range":   func(p *Policy) { p.Exempt[1].IP[0] = netip.Prefix{} },
		"a blocked range":   func(p *Policy) { p.Block[0].IP = []netip.Prefix{{}} },
		"an IPv4 prefix":    func(p *Policy) { p.Identify[3].IPv4Prefix = 33 },
		"an IPv6 prefix":    func(p *Policy) { p.Identify[3].IPv6Prefix = -1 },
		"a way to identify": func(p *Policy) { p.Identify[2].Kind = 77 },
		"no verifier":       func(p *Policy) { p.Identify[0].Verifier = nil },
		"a verifier":        func(p *Policy) { p.Identify[2].Verifier = p.Identify[0].Verifier },
		"too many ways":     func(p *Policy) { p.Identify = make([]Identify, IdentifyMax+1) },
		"a dimension":       func(p *Policy) { p.Rules[0].Per[0].Kind = 77 },
		"many dimensions":   func(p *Policy) { p.Rules[0].Per = make([]Dimension, DimensionsMax+1) },
		"an action":         func(p *Policy) { p.Rules[0].Action = 77 },
		"a limit":           func(p *Policy) { p.Rules[0].Limits[0] = Limit{} },
		"many limits":       func(p *Policy) { p.Rules[0].Limits = limits(t, make65()...) },
		"a tier's limit":    func(p *Policy) { p.Rules[0].Tiers["1"] = LimitSet{Limits: make([]Limit, 1)} },
		"a penalty":         func(p *Policy) { p.Penalty.Multipliers = nil },
		"too many rules":    func(p *Policy) { p.Rules = make([]Rule, RulesMax+1) },
	} {
		p := varied(t)
		if _, err := Assemble(p); err != nil {
			t.Fatal(err)
		}
		spoil(&p)
		if rs, err := Assemble(p); err == nil || rs != nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func make65() (texts []string) {
	for range ChecksMax + 1 {
		texts = append(texts, "5/1m")
	}
	return texts
}

// survive assembles a policy whose body in the compact form this is, and decides requests by it: whatever it says, nothing
// panics. taken says that it could be assembled.
func survive(t *testing.T, rnd random, body []byte) (taken bool) {
	data := append([]byte(compactHead), body...)
	data = append(data, checksum(data)...)
	p, _, err := ReadCompact(data)
	if err != nil {
		return false
	}
	p.Reads()
	for i := range p.Identify {
		if way := &p.Identify[i]; way.Kind == IdentifyJWT || way.Kind == IdentifyAPIKey {
			way.Verifier = &knownClient{state: CredentialState(i % CredentialStateCount), identity: &Identity{Kind: "user", ID: "u"}}
		}
	}
	rs, err := Assemble(p)
	if err != nil {
		return false
	}
	var plan Plan
	for range 8 {
		a := rnd.request()
		a.remote, a.query = netip.MustParseAddr("10.0.0.1"), "key=x"
		a.headers["X-Forwarded-For"] = "192.0.2.1, 10.1.2.3"
		decideBy(&plan, rs, a, nil)
		var s Settlement
		if plan.Settlement(&s) {
			s.Checks(answered{})
		}
	}
	return true
}

type answered struct{}

func (answered) Status() int                  { return 200 }
func (answered) Header(string) (string, bool) { return "7", true }
func (answered) JSON(string) (string, bool)   { return "7", true }

func compactBody(p Policy) []byte {
	data := p.AppendCompact(nil, "v")
	return data[len(compactHead) : len(data)-checksumBytes]
}

// TestAssembleSurvivesDamage: policies of which bytes were changed, checksum and all.
func TestAssembleSurvivesDamage(t *testing.T) {
	rnd, whole, taken := newRandom(t), compactBody(varied(t)), 0
	for range underrace.Fewer(20_000) {
		body := bytes.Clone(whole)
		for range 1 + rnd.IntN(3) {
			body[rnd.IntN(len(body))] = byte(rnd.IntN(256) >> rnd.IntN(8))
		}
		if survive(t, rnd, body) {
			taken++
		}
	}
	if taken == 0 {
		t.Error("nothing was taken, so nothing was tried")
	}
}

// FuzzAssemble: whatever can be read and assembled decides requests without a panic.
func FuzzAssemble(f *testing.F) {
	f.Add(compactBody(Policy{}))
	f.Add(compactBody(varied(f)))
	f.Fuzz(func(t *testing.T, body []byte) { survive(t, random{rand.New(rand.NewPCG(1, 1))}, body) })
}
