// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func TestKeys(t *testing.T) {
	header := func(name string) policy.Dimension { return policy.Dimension{Kind: policy.PerHeader, Name: name} }
	user := []policy.Identify{{Kind: policy.IdentifyHeader, Name: "x-user", Unverified: true}, {}}
	long := strings.Repeat("x", 256)
	// The SHA-256 of 256 letters x.
	const hash = "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
	for _, c := range []struct {
		what     string
		identify []policy.Identify
		per      []policy.Dimension
		none     bool
		a        client
		want     string
	}{
		{"by address", nil, nil, false, client{}, "{ip:192.0.2.1}"},
		{"by IPv6 prefix", nil, nil, false, client{peer: netip.MustParseAddr("2001:db8:1:2:3::4%eth0")},
			"{ip:2001%3Adb8%3A1%3A2%3A%3A/64}"},
		{"everybody", nil, nil, true, client{}, "{api}"},
		{"by header", user, nil, false, client{header: map[string]string{"X-User": "u_42"}}, "{header.x-user:u_42}"},
		{"by the next method", user, nil, false, client{header: map[string]string{"X-User": ""}}, "{ip:192.0.2.1}"},
		{"by long header", user, nil, false, client{header: map[string]string{"X-User": long}},
			"{header.x-user-sha256:" + hash + "}"},
		{"braces and colons", user, nil, false, client{header: map[string]string{"X-User": "a:{b} %é\n"}},
			"{header.x-user:a%3A%7Bb%7D%20%25%C3%A9%0A}"},
		{"canonical order", user, []policy.Dimension{header("b"), header("A"), {Kind: policy.PerMethod}, {Kind: policy.PerHost}, {Kind: policy.PerIP}, {}},
			false, client{host: "EXAMPLE.com:8080", method: "HEAD", header: map[string]string{"A": "1", "B": "2", "X-User": "u"}},
			"{header.x-user:u}:ip:192.0.2.1:host:example.com:method:GET:header.a:1:header.b:2"},
		{"endpoint", nil, []policy.Dimension{{Kind: policy.PerEndpoint}}, false, client{path: "/API/x"}, "{endpoint:/api/*}"},
		{"unknown method", nil, []policy.Dimension{{Kind: policy.PerMethod}}, false, client{method: "BREW"}, "{method:other}"},
		{"long method", nil, []policy.Dimension{{Kind: policy.PerMethod}}, false, client{method: strings.Repeat("X", 300)}, "{method:other}"},
		{"attribute", nil, []policy.Dimension{{Kind: policy.PerAttr, Name: "geo:{x}"}}, false, client{attr: map[string]string{"geo:{x}": "DE"}},
			"{attr.geo%3A%7Bx%7D:DE}"},
		{"nobody", []policy.Identify{{Kind: policy.IdentifyAttr, Name: "user"}}, nil, false, client{}, "{client:}"},
		{"long value", nil, []policy.Dimension{header("t")}, false, client{header: map[string]string{"T": long}},
			"{header.t-sha256:" + hash + "}"},
	} {
		unverified := false
		for _, d := range c.per {
			unverified = unverified || d.Kind == policy.PerHeader
		}
		rs := mustCompile(t, policy.Policy{Name: "shop", Identify: c.identify, Rules: []policy.Rule{{Name: "api", Per: c.per, PerNone: c.none,
			Limits: limittest.All(t, "100/1m", "9/500ms fw"), Unverified: unverified, Match: policy.Match{Path: []string{"/api/*", "/*"}}}}})
		if !c.a.peer.IsValid() {
			c.a.peer = netip.MustParseAddr("::ffff:192.0.2.1")
		}
		var plan Plan
		plan.Add(rs, &c.a)
		t.Run(c.what, func(t *testing.T) {
			wantKeys(t, &plan, "rl1:shop:api:"+c.want+":60s:sw", "rl1:shop:api:"+c.want+":500ms:fw")
			for _, check := range plan.Checks() {
				if scope := string(check.Key[:check.ScopeLen]); scope != "rl1:shop:api:" {
					t.Errorf("scope is %q", scope)
				}
			}
		})
	}
}

// TestIdentity: an IPv4-mapped address is unmapped before a prefix applies, so that no prefix
// merges all IPv4 clients.
func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		peer   string
		v4, v6 int
		want   string
	}{
		{"192.0.2.1", 0, 0, "192.0.2.1"},
		{"::ffff:192.0.2.1", 0, 0, "192.0.2.1"},
		{"::ffff:192.0.2.1", 0, 56, "192.0.2.1"},
		{"::ffff:192.0.2.77", 24, 56, "192.0.2.0/24"},
		{"2001:db8:1:2:3:4:5:6", 24, 0, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3:4:5:6", 0, 48, "2001:db8:1::/48"},
		{"2001:db8:1:2:3:4:5:6%eth0", 0, 128, "2001:db8:1:2:3:4:5:6"},
		{"fe80::1%eth0", 0, 0, "fe80::/64"},
	} {
		rs := mustCompile(t, policy.Policy{Identify: []policy.Identify{{IPv4Prefix: c.v4, IPv6Prefix: c.v6}}})
		var plan Plan
		plan.Add(rs, get(c.peer, "/"))
		if id := plan.Identity(); id.Kind != "ip" || id.ID != c.want {
			t.Errorf("%s by /%d and /%d is %+v, want %s", c.peer, c.v4, c.v6, id, c.want)
		}
	}
	rs := mustCompile(t, policy.Policy{})
	var plan Plan
	plan.Add(rs, &client{})
	if id := plan.Identity(); id.Kind != "" || id.ID != "" {
		t.Errorf("without an address: %+v", id)
	}
}

// countedBy holds everything that distinguishes counters, and that keys must therefore contain.
type countedBy struct {
	namespace, rule, user, tenant, zone string
	// shape selects the rule's dimensions, its substitute for missing ones, and its limit.
	shape byte
}

// countedBy.ruleset returns a policy with one rule of the given shape. The shapes have every kind
// of dimension that clients can control, and every substitute.
func (c countedBy) ruleset(t *testing.T) *Ruleset {
	user := policy.Dimension{Kind: policy.PerHeader, Name: "X-User"}
	tenant := policy.Dimension{Kind: policy.PerHeader, Name: "X-Tenant"}
	zone := policy.Dimension{Kind: policy.PerAttr, Name: "zone"}
	r := policy.Rule{Name: "r" + c.rule, Unverified: true, Missing: policy.Missing(c.shape & 1),
		Limits: []counter.Limit{limittest.Parse(t, []string{"9/1m", "9/1m fw", "9/1s"}[c.shape>>4%3])}}
	r.Per = [][]policy.Dimension{{user, tenant}, {{}, tenant}, {tenant, zone}, {tenant}, {{}, user, zone},
		{tenant, user, zone}}[c.shape>>1%8%6]
	rs, err := Compile(policy.Policy{Name: c.namespace, Rules: []policy.Rule{r},
		Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}, {Kind: policy.IdentifyAttr, Name: "zone"}}})
	if err != nil {
		return nil
	}
	return rs
}

// countingParts returns the parts of the request by which the rule counts.
func (c countedBy) countingParts() countedBy {
	per := c.shape >> 1 % 8 % 6
	client := per == 1 || per == 4
	stands := c.shape&1 == 0 // the client replaces a missing dimension
	out := countedBy{namespace: c.namespace, rule: c.rule, shape: c.shape}
	hasUser, hasTenant, hasZone := per == 0 || per >= 4, per != 4, per == 2 || per >= 4
	if hasUser || client || stands && (hasTenant && c.tenant == "" || hasZone && c.zone == "") {
		out.user = c.user
	}
	if hasTenant {
		out.tenant = c.tenant
	}
	if hasZone || c.user == "" && (client || stands && (hasUser || hasTenant && c.tenant == "")) {
		out.zone = c.zone
	}
	return out
}

func (c countedBy) key(t *testing.T) string {
	rs := c.ruleset(t)
	if rs == nil {
		return ""
	}
	var plan Plan
	plan.Add(rs, &client{header: map[string]string{"X-User": c.user, "X-Tenant": c.tenant},
		attr: map[string]string{"zone": c.zone}})
	if len(plan.Checks()) != 1 {
		t.Fatalf("%+v has %d checks", c, len(plan.Checks()))
	}
	return string(plan.Checks()[0].Key)
}

// FuzzKeys: two requests share a counter if and only if they are equal in everything by which their
// rules count.
func FuzzKeys(f *testing.F) {
	f.Add("shop", "api", "u:1", "t", "z", byte(0), "shop", "api", "u", "1:t", "z", byte(0))
	f.Add("shop", "api", "", "t", "z", byte(2), "shop", "api", "z", "t", "z", byte(2))
	f.Add("a", "b", "u}", "{t", "", byte(4), "a", "b", "u%7D", "%7Bt", "", byte(4))
	f.Add("a", "b", "", "", "", byte(5), "a", "b", "", "client", "", byte(5))
	f.Add("a", "b", "x", "", "", byte(6), "a", "b", "", "x", "", byte(6))
	f.Add("a", "b", "x:attr.zone:y", "t", "z", byte(10), "a", "b", "x", "t", "y:attr.zone:z", byte(10))
	f.Add("a", "b", "x%3A", "t", "z", byte(10), "a", "b", "x:", "t", "z", byte(10))
	f.Add("a", "b", strings.Repeat("u", 256), "", "", byte(0), "a", "b", strings.Repeat("u", 257), "", "", byte(0))
	f.Fuzz(func(t *testing.T, n1, r1, u1, t1, z1 string, s1 byte, n2, r2, u2, t2, z2 string, s2 byte) {
		one, two := countedBy{n1, r1, u1, t1, z1, s1 % 64}, countedBy{n2, r2, u2, t2, z2, s2 % 64}
		key1, key2 := one.key(t), two.key(t)
		if key1 == "" || key2 == "" {
			return
		}
		for _, key := range []string{key1, key2} {
			if strings.Count(key, "{") != 1 || strings.Count(key, "}") != 1 {
				t.Errorf("key %q has not one pair of braces", key)
			}
		}
		// The same rule and two clients.
		if one.shape == two.shape && (one.countingParts() == two.countingParts()) != (key1 == key2) {
			t.Errorf("%+v and %+v have the keys %q and %q", one, two, key1, key2)
		}
		if (one.namespace != two.namespace || one.rule != two.rule) && key1 == key2 {
			t.Errorf("%+v and %+v share the key %q", one, two, key1)
		}
	})
}
