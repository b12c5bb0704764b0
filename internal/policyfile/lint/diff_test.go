// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/policyfile"
)

func decoded(t *testing.T, text string) *policyfile.Document {
	t.Helper()
	d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return d
}

func TestDiff(t *testing.T) {
	for _, test := range []struct{ before, after, want string }{
		{"rules: [{name: a, limit: 1/1s}]", "rules:\n- name: a # the same\n  limit: [1/1s]\n", "nothing changed"},
		{"name: s\nrules: [{name: a, limit: 1/1s}]", "name: t\nrules: [{name: a, limit: 1/1s}]",
			`changed: name; counters that start at zero: all: the policy was renamed from "s" to "t"`},
		{"rules: [{name: a, limit: 1/1s}, {name: b, limit: 1/1s}]", "rules: [{name: b, limit: 2/1s}, {name: c, limit: 3/1s}]",
			"rules added: c; rules removed: a; rules changed: b (limit)"},
		{"rules: [{name: a, limit: 1/1s}, {name: b, limit: 1/1s}]", "rules: [{name: b, limit: 1/1s}, {name: a, limit: 1/1s}]",
			"changed: order of rules"},
		{"rules: [{name: a, limit: 1/1s}, {name: b, limit: 1/1s}]", "rules: [{name: b, limit: 1/1s}]", "rules removed: a"},
		{"rules: [{name: a, limit: 1/1s}]", "rules: [{name: z, limit: 1/1s}]",
			"rules added: z; rules removed: a; counters that start at zero: z: it was called a"},
		{"rules: [{name: a, limit: [1/1s, 5/1m]}]", "rules: [{name: a, limit: [1/1s token_bucket, 5/1m, 9/1h]}]",
			"rules changed: a (limit); counters that start at zero: a 1/1s token_bucket: its window or algorithm is new, " +
				"a 9/1h: its window or algorithm is new"},
		{"rules: [{name: a, limit: 10/60s, cost: 2}]", "rules: [{name: a, limit: 20/1m}]", "rules changed: a (limit, cost)"},
		{"rules: [{name: a, limit: 1/1s, per: [client, host]}]", "rules: [{name: a, limit: 1/1s, per: [host, client]}]",
			"rules changed: a (per)"},
		{"rules: [{name: a, limit: 1/1s}]", "rules: [{name: a, limit: 1/1s, per: host}]",
			"rules changed: a (per); counters that start at zero: a: it counts per host instead of per client"},
		{"rules: [{name: a, limit: 1/1s}]", "rules: [{name: a, limit: 1/1s, per: []}]",
			"rules changed: a (per); counters that start at zero: a: it counts per [] instead of per client"},
		{"rules: [{name: a, limit: 5/1d fw}]", "timezone: Europe/Berlin\nrules: [{name: a, limit: 5/1d fw}]", "changed: timezone"},
		{"rules: [{name: a, limit: 5/day}]", "timezone: Europe/Berlin\nrules: [{name: a, limit: 5/day}]",
			"changed: timezone; counters that start at zero: a 5/day: its windows begin at other times, by the new time zone"},
		{"rules: [{name: a, limit: 5/1d fw}]", "rules: [{name: a, limit: 5/day}]",
			"rules changed: a (limit); counters that start at zero: a 5/day: its window or algorithm is new"},
		{"rules: [{name: a, limit: 1/1s, tiers: {gold: 5/1s, free: unlimited}}]", "rules: [{name: a, limit: 1/1s, tiers: {gold: 6/1s, free: 1/1m}}]",
			"rules changed: a (tiers); counters that start at zero: a 1/1m: its window or algorithm is new"},
		{"rules: [{name: a, limit: 1/1s}]", "identify: [{ip: {ipv6_prefix: 48}}]\nrules: [{name: a, limit: 1/1s}]",
			"changed: identify; counters that start at zero: those of clients that are now identified differently"},
		{"rules: [{name: a, limit: 1/1s, match: {path: /a}, per: endpoint}]", "rules: [{name: a, limit: 1/1s, match: {path: [/a, /b]}, per: endpoint}]",
			"rules changed: a (match); counters that start at zero: a: those of new path patterns"},
		{"rules: [{name: a, limit: 1/1s, match: {path: [/a, /b]}, per: endpoint}]", "rules: [{name: a, limit: 1/1s, match: {path: /a}, per: endpoint}]",
			"rules changed: a (match)"},
		{"rules: [{name: a, limit: 5/day}]", "timezone: UTC\nrules: [{name: a, limit: 5/day}]", "changed: timezone"},
		{"rules: [{name: a, limit: 1/1s}]", "trusted_proxies: 10.0.0.0/8\nrules: [{name: a, limit: 1/1s}]",
			"changed: trusted_proxies; counters that start at zero: those of clients whose address now has another source"},
		{"trusted_hops: 1\nrules: [{name: a, limit: 1/1s}]", "trusted_hops: 2\nrules: [{name: a, limit: 1/1s}]",
			"changed: trusted_hops; counters that start at zero: those of clients whose address now has another source"},
		{"tenant: {attr: x}\ntier: {attr: x}\nrules: [{name: a, limit: 1/1s, per: tenant}]",
			"tenant: {attr: y}\ntier: {attr: y}\nrules: [{name: a, limit: 1/1s, per: tenant}]",
			"changed: tenant, tier; counters that start at zero: those per tenant of clients whose tenant is now taken from elsewhere"},
		{"identify: [{jwt: {jwks_url: 'https://a', refresh: 1m}}]\nrules: [{name: a, limit: 1/1s}]",
			"identify: [{jwt: {jwks_url: 'https://a', leeway: 1m}}]\nrules: [{name: a, limit: 1/1s}]", "changed: identify"},
		{"tenant: {attr: x}\nrules: [{name: a, limit: 1/1s, per: tenant}]", "tenant: {attr: x}\nrules: [{name: a, limit: 1/1s, per: tenant, missing: share}]",
			"rules changed: a (missing); counters that start at zero: a: those of requests that lack what it counts per"},
		{"rules: [{name: a, limit: 1/1s}]", "exempt: {ip: 10.0.0.0/8}\npenalty: {}\nrules: [{name: a, limit: 1/1s}]",
			"changed: exempt, penalty"},
	} {
		before, after := decoded(t, test.before), decoded(t, test.after)
		got := Diff(before, after)
		if diff := cmp.Diff(test.want, got.String()); diff != "" {
			t.Errorf("%s\n-> %s\n(-want +got):\n%s", test.before, test.after, diff)
		}
		if same := before.Version() == after.Version(); same != got.Empty() {
			t.Errorf("%s\n-> %s\nthe versions are the same: %t, the difference is empty: %t", test.before, test.after, same, got.Empty())
		}
		if back := Diff(after, after); !back.Empty() {
			t.Errorf("%s\ndiffers from itself: %s", test.after, back.String())
		}
	}
}

// TestDiffOfManyRenamedRules: a diff of ten thousand renamed rules is fast enough for a reload.
// Comparing each rule with every other would take two minutes.
func TestDiffOfManyRenamedRules(t *testing.T) {
	before := manyRules(t)
	after := &policyfile.Document{Rules: slices.Clone(before.Rules)}
	for i := range after.Rules {
		after.Rules[i].Name += "-new"
	}
	got := Diff(before, after)
	n := len(before.Rules)
	if len(got.Added) != n || len(got.Removed) != n || len(got.Anew) != n || got.Anew[7] != "rule-7-new: it was called rule-7" {
		t.Errorf("%d added, %d removed, %d anew, want %d of each", len(got.Added), len(got.Removed), len(got.Anew), n)
	}
}

// TestDiffOfEqualRules: if several removed rules equal a new one, the new one counts as the first
// of them, renamed.
func TestDiffOfEqualRules(t *testing.T) {
	got := Diff(decoded(t, "rules: [{name: a, limit: 1/1s}, {name: b, limit: 1/1s}]"), decoded(t, "rules: [{name: c, limit: 1/1s}]"))
	if want := []string{"c: it was called a"}; !slices.Equal(got.Anew, want) {
		t.Errorf("%q, want %q", got.Anew, want)
	}
}

// TestVersion: a version is short, is the same for equal policies in different formats, and differs
// after every change.
func TestVersion(t *testing.T) {
	yaml := decoded(t, "name: shop\nrules: [{name: a, limit: 1/1s}]")
	json, err := policyfile.Decode("p.json", policyfile.JSON, []byte(`{"rules": [{"limit": ["1/1s"], "name": "a"}], "name": "shop"}`))
	if err != nil {
		t.Fatal(err)
	}
	if v := yaml.Version(); len(v) != 12 || v != json.Version() {
		t.Errorf("versions %q and %q, want one of 12 digits", v, json.Version())
	}
	json.Rules[0].Tiers = policyfile.Tiers{"gold": {"2/1s"}}
	if yaml.Version() == json.Version() {
		t.Error("a tier more is the same version")
	}
}
