// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"encoding/binary"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/request"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/test/racescale"
)

// variedPolicy returns a policy that uses every field that decisions depend on.
func variedPolicy(t testing.TB) policy.Policy {
	t.Helper()
	l, path := limittest.All(t, "10/1m", "9/1h burst 11", "100/day"), policy.Match{Path: []string{"/a*", "/b/**"}}
	return policy.Policy{Name: "shop", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: &knownClient{}}, {Kind: policy.IdentifyAPIKey, Verifier: &knownClient{},
			From: []policy.CredentialSource{{Kind: policy.FromQuery, Name: "key"}, {Kind: policy.FromCookie, Name: "k"}}},
			{Kind: policy.IdentifyHeader, Name: "x-a", Unverified: true}, {Kind: policy.IdentifyIP, IPv4Prefix: 24, IPv6Prefix: 56}},
		Tenant: []policy.Source{{Kind: policy.SourceHost, Label: 1}}, Tier: []policy.Source{{Kind: policy.SourceAttr, Name: "x"}},
		User:    []policy.Source{{Kind: policy.SourceHeader, Name: "x-b", Unverified: true}},
		Exempt:  []policy.Listed{{User: []string{"2"}}, {IP: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}, Until: counter.Day}},
		Block:   []policy.Listed{{Tier: []string{"112"}, Reason: "abuse"}},
		Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1, 2}},
		Rules: []policy.Rule{
			{Name: "api", Match: path, Limits: l, Per: []policy.Dimension{{Kind: policy.PerClient}, {Kind: policy.PerEndpoint}},
				Tiers: map[string]policy.LimitSet{"1": {Limits: l[:1]}, "12": {Unlimited: true}}, Cost: []policy.Cost{{N: 2, Match: path}, {N: 1}}},
			{Name: "host", Group: "g", Limits: l[:1], Match: policy.Match{Host: []string{"*.example"}, Header: []policy.HeaderMatch{{Name: "x-b"}}},
				Per: []policy.Dimension{{Kind: policy.PerHost}, {Kind: policy.PerMethod}, {Kind: policy.PerIP}, {Kind: policy.PerTenant}}},
			{Name: "zone", Group: "g", Limits: l[:1], Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "y"}}, Missing: policy.MissingSkip,
				Match: policy.Match{Attr: []policy.AttrMatch{{Name: "y", Values: []string{"1*2"}}}}, Replaces: []string{"host"}},
			{Name: "slow", PerNone: true, Limits: l[:1], Action: policy.ActionThrottle, Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 5},
				CostAfter: &policy.CostAfter{JSON: "usage.total", Estimate: 3}, CountIf: []policy.Statuses{{From: 400, To: 499}}},
			{Name: "many", PerNone: true, Expose: true, Shards: 5, Limits: l[:1]},
			{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Method: []string{"PUT"}}, Response: &policy.Response{Status: 404, Body: "{}"}},
		}}
}

// viaCompact returns the policy after a round trip through the compact form, with its verifiers
// restored.
func viaCompact(t testing.TB, p policy.Policy) policy.Policy {
	t.Helper()
	got, _, err := compact.ReadPolicy(compact.AppendPolicy(nil, &p, "v"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Identify {
		got.Identify[i].Verifier = p.Identify[i].Verifier
	}
	return got
}

// TestAssembleDecidesAsCompile: a policy decides the same after a round trip through the compact
// form.
func TestAssembleDecidesAsCompile(t *testing.T) {
	rnd := request.NewRandom(t)
	policies := []policy.Policy{variedPolicy(t)}
	var requests []policy.Attributes
	for len(policies) < racescale.Fewer(200) {
		d := draw(t, rnd.Rand)
		d.policy.Identify = []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: &knownClient{&d.who, d.state}}, {Kind: policy.IdentifyIP}}
		policies, requests = append(policies, d.policy), append(requests, d.asks, rnd.Request())
	}
	asked := 0
	for _, p := range policies {
		compiled, err := Compile(p)
		if err != nil {
			continue
		}
		assembled, err := Assemble(viaCompact(t, p))
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			a := requests[rnd.IntN(len(requests))]
			var want, got Plan
			wanted, decided := decideBy(&want, compiled, a, nil), decideBy(&got, assembled, a, &want)
			for i := range want.checks {
				want.checks[i].Bounds = nil
				if c := &want.checks[i]; c.UnshardedLimit != nil {
					c.Key, c.Limit, c.UnshardedLimit = counter.AppendUnshardedKey(nil, c.Key), c.UnshardedLimit, nil
				}
			}
			asked += len(want.checks)
			opts := cmp.AllowUnexported(counter.Limit{})
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

// shownPart holds the parts of a decision that a client sees.
type shownPart struct {
	status int
	fields Fields
	body   string
}

// decideBy decides a request, either with generated results that deny some of the checks or with
// the results of another plan.
func decideBy(p *Plan, rs *Ruleset, a policy.Attributes, told *Plan) shownPart {
	p.Reset()
	p.Add(rs, a)
	results := p.Results()
	for i := range results {
		results[i] = counter.Result{Denied: i%3 == 1, Granted: 1, Remaining: 5, Reset: counter.Hour, Wait: counter.Micros(i) * counter.Second}
	}
	if told != nil {
		copy(results, told.AppendUnsharded(nil))
	}
	d := p.Decide()
	return shownPart{d.Status, HeadersOf(p, &d), string(ProblemOf(nil, p, &d))}
}

// TestAssembleRejectsWhatCannotBeDecided: Assemble rejects policies under which a decision would
// panic, or a request would not be counted.
func TestAssembleRejectsWhatCannotBeDecided(t *testing.T) {
	for name, spoil := range map[string]func(p *policy.Policy){
		"a path":            func(p *policy.Policy) { p.Rules[0].Match.Path[0] = "a" },
		"a host":            func(p *policy.Policy) { p.Rules[1].Match.Host[0] = "a:80" },
		"a range":           func(p *policy.Policy) { p.Rules[0].Match.IP = []netip.Prefix{{}} },
		"a cost's match":    func(p *policy.Policy) { p.Rules[0].Cost[0].Match.Path = []string{""} },
		"a cost's range":    func(p *policy.Policy) { p.Rules[0].Cost[0].Trusted = []netip.Prefix{{}} },
		"a cost":            func(p *policy.Policy) { p.Rules[0].Cost[0].N = 0 },
		"an estimate":       func(p *policy.Policy) { p.Rules[3].CostAfter.Estimate = -1 },
		"a retry":           func(p *policy.Policy) { p.Rules[0].RetryAfter = -1 },
		"a jitter":          func(p *policy.Policy) { p.Rules[0].RetryJitter = -2 * counter.Second },
		"a trusted range":   func(p *policy.Policy) { p.TrustedProxies[0] = netip.Prefix{} },
		"hops":              func(p *policy.Policy) { p.TrustedHops = -1 },
		"an exempt range":   func(p *policy.Policy) { p.Exempt[1].IP[0] = netip.Prefix{} },
		"a blocked range":   func(p *policy.Policy) { p.Block[0].IP = []netip.Prefix{{}} },
		"an IPv4 prefix":    func(p *policy.Policy) { p.Identify[3].IPv4Prefix = 33 },
		"an IPv6 prefix":    func(p *policy.Policy) { p.Identify[3].IPv6Prefix = -1 },
		"a way to identify": func(p *policy.Policy) { p.Identify[2].Kind = 77 },
		"no verifier":       func(p *policy.Policy) { p.Identify[0].Verifier = nil },
		"a verifier":        func(p *policy.Policy) { p.Identify[2].Verifier = p.Identify[0].Verifier },
		"too many ways":     func(p *policy.Policy) { p.Identify = make([]policy.Identify, policy.IdentifyMax+1) },
		"a dimension":       func(p *policy.Policy) { p.Rules[0].Per[0].Kind = 77 },
		"many dimensions":   func(p *policy.Policy) { p.Rules[0].Per = make([]policy.Dimension, policy.DimensionsMax+1) },
		"an action":         func(p *policy.Policy) { p.Rules[0].Action = 77 },
		"a limit":           func(p *policy.Policy) { p.Rules[0].Limits[0] = counter.Limit{} },
		"many limits":       func(p *policy.Policy) { p.Rules[0].Limits = limittest.All(t, make65Texts()...) },
		"a tier's limit":    func(p *policy.Policy) { p.Rules[0].Tiers["1"] = policy.LimitSet{Limits: make([]counter.Limit, 1)} },
		"a penalty":         func(p *policy.Policy) { p.Penalty.Multipliers = nil },
		"too many rules":    func(p *policy.Policy) { p.Rules = make([]policy.Rule, policy.RulesMax+1) },
	} {
		p := variedPolicy(t)
		if _, err := Assemble(p); err != nil {
			t.Fatal(err)
		}
		spoil(&p)
		if rs, err := Assemble(p); err == nil || rs != nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func make65Texts() (texts []string) {
	for range counter.ChecksMax + 1 {
		texts = append(texts, "5/1m")
	}
	return texts
}

// compactForm is the first line of a policy in compact form.
const compactForm = "penstock policy 4\n"

// surviveBody assembles a policy from a body in compact form and decides requests by it, which
// must not panic. surviveBody reports whether the policy could be assembled.
func surviveBody(t *testing.T, rnd request.Random, body []byte) (taken bool) {
	data := append([]byte(compactForm), body...)
	data = binary.BigEndian.AppendUint64(data, slim.FNV(data)) // the checksum
	p, _, err := compact.ReadPolicy(data)
	if err != nil {
		return false
	}
	InputsOf(&p)
	for i := range p.Identify {
		if way := &p.Identify[i]; way.Kind == policy.IdentifyJWT || way.Kind == policy.IdentifyAPIKey {
			way.Verifier = &knownClient{state: policy.CredentialState(i % policy.CredentialStateCount), identity: &policy.Identity{Kind: "user", ID: "u"}}
		}
	}
	rs, err := Assemble(p)
	if err != nil {
		return false
	}
	var plan Plan
	for range 8 {
		a := rnd.Request()
		a.RemoteAddr, a.QueryText = netip.MustParseAddr("10.0.0.1"), "key=x"
		a.Headers["X-Forwarded-For"] = "192.0.2.1, 10.1.2.3"
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

func compactBody(p policy.Policy) []byte {
	data := compact.AppendPolicy(nil, &p, "v")
	return data[len(compactForm) : len(data)-8]
}

// TestAssembleSurvivesDamage assembles policies with altered bytes and a matching checksum.
func TestAssembleSurvivesDamage(t *testing.T) {
	rnd, whole, taken := request.NewRandom(t), compactBody(variedPolicy(t)), 0
	for range racescale.Fewer(20_000) {
		body := bytes.Clone(whole)
		for range 1 + rnd.IntN(3) {
			body[rnd.IntN(len(body))] = byte(rnd.IntN(256) >> rnd.IntN(8))
		}
		if surviveBody(t, rnd, body) {
			taken++
		}
	}
	if taken == 0 {
		t.Error("nothing was taken, so nothing was tried")
	}
}

// FuzzAssemble: a policy that can be read and assembled decides requests without a panic.
func FuzzAssemble(f *testing.F) {
	f.Add(compactBody(policy.Policy{}))
	f.Add(compactBody(variedPolicy(f)))
	f.Fuzz(func(t *testing.T, body []byte) {
		surviveBody(t, request.Random{Rand: rand.New(rand.NewPCG(1, 1))}, body)
	})
}
