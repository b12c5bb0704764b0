// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// everyNewWord is a policy that uses every field about identities and actions once.
const everyNewWord = `
name: shop
trusted_hops: 2
timezone: Europe/Berlin
user: {attr: http.auth.user.id}
tenant: {host_label: 1}
tier: [{attr: plan}, {header: {name: x-plan, unverified: true}}]
identify:
  - jwt: {secret_file: s, header: x-token, cookie: c, query: q, bearer: true, on_invalid: deny}
  - api_key: {keys_file: k.toml, on_invalid: next}
  - cookie: {name: sid, unverified: true}
exempt: {user: admin, ip: 10.0.0.0/8}
block:
  - {api_key: [k], tenant: t, tier: [x, y], reason: why, until: 1970-01-01T01:00:01+01:00}
penalty: {window: 30m, threshold: 2, multipliers: [1, 3], max: 2h}
rules:
  - name: a
    match: {tier: gold, user: [u, v], api_key: k, tenant: t}
    per: [user, api_key, tenant, tier]
    limit: [5/day, 9/1m]
    tiers: {gold: 7/1s, lead: unlimited}
    cost: [{header: x-cost, trusted: 10.0.0.1, max: 9, n: 2}]
    count_if: {status: [401, 5xx]}
    refund_on: {status: 404}
    action: throttle
    throttle: {max_delay: 1500ms}
    retry_after: 30s
    retry_jitter: 1m
    response: {status: 503, body: '{}', content_type: application/json, headers: {x-b: c, x-a: b}}
  - name: b
    limit: 5/1m
    cost_after: {header: x-units, estimate: 2, default: 3, max: 4}
    throttle: {max_delay: 1s, max_waiting: 7}
`

func TestEveryNewWordIsConverted(t *testing.T) {
	p, err := decodedTree(t, everyNewWord).Policy()
	if err != nil {
		t.Fatal(err)
	}
	if p.TrustedHops != 2 || p.Timezone.String() != "Europe/Berlin" {
		t.Errorf("hops %d in %s", p.TrustedHops, p.Timezone)
	}
	want := policy.Policy{
		Name:   "shop",
		User:   []policy.Source{{Name: "http.auth.user.id"}},
		Tenant: []policy.Source{{Kind: policy.SourceHost, Label: 1}},
		Tier:   []policy.Source{{Name: "plan"}, {Kind: policy.SourceHeader, Name: "X-Plan", Unverified: true}},
		Identify: []policy.Identify{
			{Kind: policy.IdentifyJWT, DenyInvalid: true, From: []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-Token"},
				{Kind: policy.FromCookie, Name: "c"}, {Kind: policy.FromQuery, Name: "q"}, {Kind: policy.FromBearer}}},
			{Kind: policy.IdentifyAPIKey},
			{Kind: policy.IdentifyCookie, Name: "sid", Unverified: true},
		},
		Exempt: []policy.Listed{{User: []string{"admin"}, IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		Block: []policy.Listed{{APIKey: []string{"k"}, Tenant: []string{"t"}, Tier: []string{"x", "y"}, Reason: "why",
			Until: counter.Second}},
		Penalty: &counter.Penalty{Window: 30 * counter.Minute, Threshold: 2, Multipliers: []int64{1, 3}, Max: 2 * counter.Hour},
		Rules: []policy.Rule{
			{
				Name:     "a",
				Match:    policy.Match{Tier: []string{"gold"}, User: []string{"u", "v"}, APIKey: []string{"k"}, Tenant: []string{"t"}},
				Per:      []policy.Dimension{{Kind: policy.PerUser}, {Kind: policy.PerAPIKey}, {Kind: policy.PerTenant}, {Kind: policy.PerTier}},
				Cost:     []policy.Cost{{Header: "X-Cost", Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, Max: 9, N: 2}},
				CountIf:  []policy.Statuses{{From: 401, To: 401}, {From: 500, To: 599}},
				RefundOn: []policy.Statuses{{From: 404, To: 404}},
				Action:   policy.ActionThrottle,
				Throttle: &policy.Throttle{MaxDelay: 1500 * counter.Millisecond, MaxWaiting: 1000},
				Response: &policy.Response{Status: 503, Body: "{}", ContentType: "application/json",
					Headers: []policy.Field{{Name: "X-A", Value: "b"}, {Name: "X-B", Value: "c"}}},
				RetryAfter:  30 * counter.Second,
				RetryJitter: counter.Minute,
			},
			{
				Name:      "b",
				CostAfter: &policy.CostAfter{Header: "X-Units", Estimate: 2, Default: 3, Max: 4},
				Throttle:  &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 7},
			},
		},
	}
	gold, lead := p.Rules[0].Tiers["gold"], p.Rules[0].Tiers["lead"]
	if len(gold.Limits) != 1 || gold.Limits[0].String() != "7/1s" || gold.Unlimited || !lead.Unlimited || len(lead.Limits) > 0 {
		t.Errorf("tiers %+v", p.Rules[0].Tiers)
	}
	if limits := p.Rules[0].Limits; len(limits) != 2 || limits[0].Calendar() != counter.CalendarDay {
		t.Errorf("limits %v", limits)
	}
	p.TrustedHops, p.Timezone = 0, nil
	for i := range p.Rules {
		p.Rules[i].Limits, p.Rules[i].Tiers = nil, nil
	}
	if diff := cmp.Diff(want, p, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// decodedTree decodes a document without compiling it, so its policy can be invalid.
func decodedTree(t *testing.T, text string) *Document {
	t.Helper()
	d, err := Decode("p.yaml", YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDefaultsOfNewWords: an empty penalty has all the defaults, and fields that a policy omits
// remain unset.
func TestDefaultsOfNewWords(t *testing.T) {
	p, err := decodedTree(t, "penalty: {}\nrules: [{name: a, limit: 1/1s}]").Policy()
	if err != nil {
		t.Fatal(err)
	}
	want := &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1, 2, 4, 8}}
	if diff := cmp.Diff(want, p.Penalty); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	r := &p.Rules[0]
	if p.Timezone != nil || p.Exempt != nil || p.Block != nil || p.Tenant != nil || r.Tiers != nil || r.CostAfter != nil ||
		r.Throttle != nil || r.Response != nil || r.CountIf != nil || r.RetryAfter != 0 {
		t.Errorf("the policy says more than was written: %+v", p)
	}
}

// acceptAll is a verifier that accepts every credential as that of one client.
type acceptAll struct{ who policy.Identity }

func (b *acceptAll) Verify(string) (*policy.Identity, policy.CredentialState) {
	return &b.who, policy.CredentialValid
}

// TestCompileWith: a policy that verifies credentials needs one verifier for each way of
// identifying, and each problem is reported with its place.
func TestCompileWith(t *testing.T) {
	d := decodedTree(t, "identify:\n- ip\n- jwt: {secret_file: s}\n- api_key: {keys_file: k.toml}\nrules: [{name: a, limit: 1/1s}]")
	if err := d.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
	_, err := d.Compile()
	wantError(t, err, "p.yaml:3: identify[1].jwt: has no verifier", "p.yaml:4: identify[2].api_key: has no verifier")
	v := &acceptAll{}
	_, err = d.CompileWith([]policy.Verifier{nil, v})
	wantError(t, err, "p.yaml:4: identify[2].api_key: has no verifier")
	if _, err = d.CompileWith([]policy.Verifier{nil, v, v}); err != nil {
		t.Errorf("CompileWith: %v", err)
	}
	d = decodedTree(t, "identify: [{api_key: {keys_file: k.toml, header: 'X Y', bearer: true}}]\nrules: [{name: a, limit: 1/1s}]")
	wantError(t, d.Check(), `p.yaml:1: identify[0].api_key.header: "X Y": is not the name of a header`)
}

func TestSecret(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "from the environment")
	t.Setenv("PENSTOCK_TEST_EMPTY", "")
	for word, want := range map[string]string{"plain": "plain", "{env.PENSTOCK_TEST_SECRET}": "from the environment",
		"{env.UNCLOSED": "{env.UNCLOSED", "": ""} {
		if got, err := Secret(word); got != want || err != nil {
			t.Errorf("Secret(%q) = %q, %v, want %q", word, got, err, want)
		}
	}
	if _, err := Secret("{env.PENSTOCK_TEST_EMPTY}"); err == nil || !strings.Contains(err.Error(), "PENSTOCK_TEST_EMPTY") {
		t.Errorf("Secret of an empty variable: error %v", err)
	}
}

// TestFile: relative names of files in a policy are resolved against the folder of the policy.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(policyText("a")), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	absolute := filepath.Join(dir, "elsewhere", "keys.toml")
	for name, want := range map[string]string{"keys.toml": filepath.Join(dir, "keys.toml"), absolute: absolute, "": ""} {
		if got := d.File(name); got != want {
			t.Errorf("File(%q) = %q, want %q", name, got, want)
		}
	}
	if got := decodedTree(t, policyText("a")).File("keys.toml"); got != "keys.toml" {
		t.Errorf("without a file, File = %q", got)
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0s": 0, "1ms": time.Millisecond, "30s": 30 * time.Second,
		"90m": 90 * time.Minute, "2d": 48 * time.Hour, "366d": 366 * 24 * time.Hour} {
		if got, err := Span(text); got != want || err != nil {
			t.Errorf("Span(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"30", "s", "-1s", "+1s", "01s", "1.5s", "1h30m", "1 s", "1w", "367d", "99999999999999999999s", "1S", "1µs"} {
		if got, err := Span(text); err == nil {
			t.Errorf("Span(%q) = %v, want an error", text, got)
		}
	}
}

// TestMatchAttr: attributes are matched by the proxy's names for them, which are case-sensitive.
func TestMatchAttr(t *testing.T) {
	d, err := Decode("p.yaml", YAML, []byte("rules: [{name: a, match: {attr: {http.vars.Plan: gold, b: [x, y*z], c: []}}, limit: 1/1m}]"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Policy()
	if err != nil {
		t.Fatal(err)
	}
	want := []policy.AttrMatch{{Name: "b", Values: []string{"x", "y*z"}}, {Name: "c", Values: []string{}},
		{Name: "http.vars.Plan", Values: []string{"gold"}}}
	if diff := cmp.Diff(want, p.Rules[0].Match.Attr); diff != "" {
		t.Error(diff)
	}
	_, err = Decode("p.yaml", YAML, []byte("rules: [{name: a, match: {attr: {b: [\"\"]}}, limit: 1/1m}]"))
	if err == nil {
		d, _ = Decode("p.yaml", YAML, []byte("rules: [{name: a, match: {attr: {b: [\"\"]}}, limit: 1/1m}]"))
		err = d.Check()
	}
	if err == nil || !strings.Contains(err.Error(), `p.yaml:1: rules[0] "a".match.attr.b[0]: is empty`) {
		t.Errorf("%v", err)
	}
}
