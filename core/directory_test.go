// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
)

// directory maps KIND:ID and networks to records. A nil record stands for one that the directory
// has not read.
type directory map[string]*policy.ClientRecord

func (d directory) Find(kind, id string, _ counter.Micros) (*policy.ClientRecord, bool) {
	record, ok := d[kind+":"+id]
	return record, !ok || record != nil
}

func (d directory) FindAddr(addr netip.Addr, _ counter.Micros) *policy.ClientRecord {
	for name, record := range d {
		if p, err := netip.ParsePrefix(name); err == nil && p.Contains(addr) {
			return record
		}
	}
	return nil
}

// askDirected is mapStore.ask with a directory.
func (c *mapStore) askDirected(d directory, a policy.Attributes, rs *Ruleset) (*Plan, Decision) {
	plan := new(Plan)
	plan.UseDirectory(d)
	plan.Add(rs, a)
	c.take(plan.Checks(), plan.Results())
	return plan, plan.Decide()
}

// TestOrderOfForce tests the order of precedence among the sources of a client's properties, for
// each adjacent pair.
func TestOrderOfForce(t *testing.T) {
	record := func(change func(*policy.ClientRecord)) *policy.ClientRecord {
		r := new(policy.ClientRecord)
		change(r)
		return r
	}
	limits := func(text string) *policy.ClientRecord {
		return &policy.ClientRecord{Overrides: parseOwnLimits(t, map[string]string{"api": text})}
	}
	tier := record(func(r *policy.ClientRecord) { r.Tier = "gold" })
	blocked := record(func(r *policy.ClientRecord) { r.Blocked = true })
	exempt := record(func(r *policy.ClientRecord) { r.Exempt = true })
	both := record(func(r *policy.ClientRecord) { r.Blocked, r.Exempt = true, true })
	key := func(tier, limit string) policy.Identity {
		who := policy.Identity{Kind: "api_key", ID: "k", APIKey: "k", User: "ann", Tenant: "t", Tier: tier}
		if limit != "" {
			who.Overrides = parseOwnLimits(t, map[string]string{"api": limit})
		}
		return who
	}
	for _, c := range []struct {
		name    string
		who     policy.Identity
		state   policy.CredentialState
		records directory
		listed  bool // whether the policy's list "exempt" contains the client
		outcome Outcome
		limit   int64
	}{
		{"default", key("", ""), policy.CredentialValid, directory{}, false, OutcomeAllowed, 5},
		{"tier of the record over the default", key("", ""), policy.CredentialValid, directory{"api_key:k": tier}, false, OutcomeAllowed, 50},
		{"tier of the credential over that of the record", key("silver", ""), policy.CredentialValid, directory{"api_key:k": tier}, false,
			OutcomeAllowed, 20},
		{"limits of the record over the tier of the credential", key("silver", ""), policy.CredentialValid,
			directory{"api_key:k": limits("7/1m")}, false, OutcomeAllowed, 7},
		{"limits of the key over those of the record", key("silver", "9/1m"), policy.CredentialValid,
			directory{"api_key:k": limits("7/1m")}, false, OutcomeAllowed, 9},
		{"limits of the key's record over those of the owner's", key("", ""), policy.CredentialValid,
			directory{"api_key:k": limits("7/1m"), "user:ann": limits("8/1m")}, false, OutcomeAllowed, 7},
		{"limits of the owner's record", key("", ""), policy.CredentialValid, directory{"user:ann": limits("8/1m")}, false, OutcomeAllowed, 8},
		{"limits of the owner's record over those of its tenant's", key("", ""), policy.CredentialValid,
			directory{"user:ann": limits("8/1m"), "tenant:t": limits("6/1m")}, false, OutcomeAllowed, 8},
		{"limits of the tenant's record over the tier of the credential", key("silver", ""), policy.CredentialValid,
			directory{"tenant:t": limits("6/1m")}, false, OutcomeAllowed, 6},
		{"exempt over limits", key("silver", "9/1m"), policy.CredentialValid, directory{"api_key:k": exempt}, false, OutcomeExempt, 0},
		{"a revoked key is not exempt by its owner's record, since nobody knows the owner", key("", ""), policy.CredentialRevoked,
			directory{"user:ann": exempt}, false, OutcomeUnauthorized, 0},
		{"the state of the key over exempt", key("", ""), policy.CredentialRevoked, directory{"192.0.2.0/24": exempt}, false,
			OutcomeUnauthorized, 0},
		{"block over the state of the key", key("", ""), policy.CredentialRevoked, directory{"192.0.2.0/24": blocked}, false, OutcomeBlocked, 0},
		{"block over exempt", key("", ""), policy.CredentialValid, directory{"api_key:k": both}, false, OutcomeBlocked, 0},
		{"block of the owner over exempt of the key", key("", ""), policy.CredentialValid,
			directory{"api_key:k": exempt, "user:ann": blocked}, false, OutcomeBlocked, 0},
		{"block over the policy's exempt", key("", ""), policy.CredentialValid, directory{"api_key:k": blocked}, true, OutcomeBlocked, 0},
		{"block of the network", key("", ""), policy.CredentialValid, directory{"192.0.2.0/24": blocked}, false, OutcomeBlocked, 0},
		{"tier of a network is that of addresses only", key("", ""), policy.CredentialValid, directory{"192.0.2.0/24": tier}, false,
			OutcomeAllowed, 5},
	} {
		p := forcePolicy(t, &knownClient{&c.who, c.state}, c.listed)
		a := &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-Key": "secret"}}
		_, d := newCounters().askDirected(c.records, a, mustCompile(t, p))
		limit := int64(0)
		if d.Limit != nil {
			limit = d.Limit.Count()
		}
		if d.Outcome != c.outcome || limit != c.limit {
			t.Errorf("%s: %v, limit %d; want %v, limit %d", c.name, d.Outcome, limit, c.outcome, c.limit)
		}
	}
}

// forcePolicy returns a policy with API keys and with separate limits for two tiers. If listed is
// set, the policy exempts the key "k".
func forcePolicy(t *testing.T, verifier policy.Verifier, listed bool) policy.Policy {
	t.Helper()
	p := policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyAPIKey,
		From: []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-Key"}}, Verifier: verifier}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "5/1m"), Tiers: map[string]policy.LimitSet{
			"silver": {Limits: limittest.All(t, "20/1m")}, "gold": {Limits: limittest.All(t, "50/1m")}}}}}
	if listed {
		p.Exempt = []policy.Listed{{APIKey: []string{"k"}}}
	}
	return p
}

// TestUnresolved: a plan names the clients that the directory has not read, and finds their records
// when the request is added again.
func TestUnresolved(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Tier: tierOf, Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Tenant: []policy.Source{{Kind: policy.SourceAttr, Name: "tenant"}},
		Rules:  []policy.Rule{{Name: "api", Limits: limittest.All(t, "5/1m")}}})
	a := &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "ann"}, attr: map[string]string{"tenant": "t"}}
	known := directory{"header.x-user:ann": nil, "tenant:t": nil}
	var plan Plan
	plan.UseDirectory(known)
	plan.Add(rs, a)
	want := []policy.ClientName{{Kind: "header.x-user", ID: "ann"}, {Kind: "tenant", ID: "t"}}
	if got := plan.Unresolved(); !slices.Equal(got, want) || len(plan.Checks()) != 1 {
		t.Fatalf("unresolved are %v and %d checks, want %v and 1", got, len(plan.Checks()), want)
	}
	known["header.x-user:ann"], known["tenant:t"] = new(policy.ClientRecord), &policy.ClientRecord{Blocked: true}
	plan.Retry()
	plan.Add(rs, a)
	if d := plan.Decide(); len(plan.Unresolved()) != 0 || d.Outcome != OutcomeBlocked {
		t.Errorf("unresolved are %v, the outcome is %v", plan.Unresolved(), d.Outcome)
	}
	plan.Reset()
	plan.Add(rs, a)
	if d := plan.Decide(); d.Outcome != OutcomeAllowed {
		t.Errorf("without a directory: %v", d.Outcome)
	}
}

// TestKnown: a client is known by its own record and by its user's record. A tenant's record makes
// no client known, because a client can make up names within a tenant.
func TestKnown(t *testing.T) {
	who := policy.Identity{Kind: "api_key", ID: "k", APIKey: "k", User: "ann", Tenant: "t"}
	for name, want := range map[string]bool{"api_key:k": true, "user:ann": true, "tenant:t": false, "user:bob": false} {
		a := &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-Key": "secret"}}
		plan := new(Plan)
		plan.UseDirectory(directory{name: new(policy.ClientRecord)})
		plan.Add(mustCompile(t, forcePolicy(t, &knownClient{&who, policy.CredentialValid}, false)), a)
		if plan.Known() != want {
			t.Errorf("with a record of %s: known: %v", name, plan.Known())
		}
	}
	for _, network := range []bool{false, true} {
		plan := new(Plan)
		plan.UseDirectory(directory{"192.0.2.0/24": {Tier: "free", Network: network}})
		plan.Add(mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "5/1m")}}}),
			&client{peer: netip.MustParseAddr("192.0.2.1")})
		if plan.Known() == network || plan.Identity().Tier != "free" {
			t.Errorf("an address with a record, of a network: %v: known: %v, tier %q", network, plan.Known(), plan.Identity().Tier)
		}
	}
}

// TestLongNamesAreHashed: a tenant of any length is looked up under a name of at most 255 bytes, so
// that a client cannot fill the memory of a directory.
func TestLongNamesAreHashed(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Tenant: []policy.Source{{Kind: policy.SourceAttr, Name: "tenant"}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "5/1m")}}})
	long := strings.Repeat("x", policy.ValueBytesMax+1)
	a := &client{peer: netip.MustParseAddr("192.0.2.1"), attr: map[string]string{"tenant": long}}
	var plan Plan
	plan.UseDirectory(noRecords{})
	plan.Add(rs, a)
	want := policy.IdentityOf("tenant", long)
	if got := plan.Unresolved(); len(got) != 1 || got[0] != (policy.ClientName{Kind: want.Kind, ID: want.ID}) || len(got[0].ID) != 64 {
		t.Errorf("unresolved are %.100v", got)
	}
}

// noRecords is a directory that has read nothing.
type noRecords struct{}

func (noRecords) Find(string, string, counter.Micros) (*policy.ClientRecord, bool) { return nil, false }
func (noRecords) FindAddr(netip.Addr, counter.Micros) *policy.ClientRecord         { return nil }

// TestRequiredRecords: a request is denied if its client is unknown and records are required, even
// if no rule matches.
func TestRequiredRecords(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Match: policy.Match{Path: []string{"/api"}}, Limits: limittest.All(t, "5/1m")}}})
	known := directory{"header.x-user:bob": new(policy.ClientRecord), "header.x-user:ann": nil}
	for user, want := range map[string]Outcome{"ann": OutcomeDegradedDenied, "bob": OutcomeNone} {
		a := &client{path: "/other", peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": user}}
		var plan Plan
		plan.UseDirectory(known)
		plan.RequireRecords()
		plan.Add(rs, a)
		if d := plan.Decide(); d.Outcome != want || d.Denied() != (user == "ann") {
			t.Errorf("%s: %v, status %d", user, d.Outcome, d.Status)
		}
	}
}

// TestDenyUnread tests that a front can deny any request whose records it has no time to read, and
// that a blocked client is still answered as a blocked one.
func TestDenyUnread(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Match: policy.Match{Path: []string{"/api"}}, Limits: limittest.All(t, "5/1m")}}})
	known := directory{"header.x-user:ann": nil, "header.x-user:bob": {Blocked: true}}
	for _, c := range []struct {
		user, path string
		want       int
	}{{"ann", "/api", 503}, {"ann", "/other", 503}, {"bob", "/other", 403}} {
		var plan Plan
		plan.UseDirectory(known)
		plan.Add(rs, &client{path: c.path, peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": c.user}})
		plan.DenyUnread()
		if d := plan.Overload(); d.Status != c.want || len(plan.Checks()) != 0 {
			t.Errorf("%s %s: status %d, %d checks, want %d", c.user, c.path, d.Status, len(plan.Checks()), c.want)
		}
	}
}

// TestRecordsDoNotAllocate: planning a request of a client with a known record allocates nothing.
func TestRecordsDoNotAllocate(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "5/1m")}}})
	var a policy.Attributes = &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "ann"}}
	d := oneRecord{&policy.ClientRecord{Tier: "gold", Overrides: parseOwnLimits(t, map[string]string{"*": "70/1m"})}}
	var plan Plan
	ask := func() {
		plan.Reset()
		plan.UseDirectory(d)
		plan.Add(rs, a)
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n != 0 || plan.Checks()[0].Limit.Count() != 70 {
		t.Errorf("%v allocations, limit %v", n, plan.Checks()[0].Limit)
	}
}

// oneRecord is a directory in which every client has the same record.
type oneRecord struct{ record *policy.ClientRecord }

func (d oneRecord) Find(string, string, counter.Micros) (*policy.ClientRecord, bool) {
	return d.record, true
}
func (d oneRecord) FindAddr(netip.Addr, counter.Micros) *policy.ClientRecord { return nil }
