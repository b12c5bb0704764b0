// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/directory"
)

// TestTheViewOfQuotas tests that penstock.client_quotas has the limits that a proxy would apply to
// a client, in the order of precedence, and that ended records have no effect.
func TestTheViewOfQuotas(t *testing.T) {
	t.Parallel()
	l := open(t)
	l.Now = nil // because the view uses the database's clock
	text := "name: shop\nidentify: [{api_key: {keys_file: keys.toml}}, ip]\nrules:\n" +
		"  - {name: api, limit: 5/1m, tiers: {gold: [50/1m, 500/1h], free: 1/1m, inf: unlimited}}\n" +
		"  - {name: search, limit: 7/1m, match: {tier: gold}}\n  - {name: off, limit: 1/1m, enabled: false}\n  - {name: all, per: [], limit: 9/1m}\n"
	if _, err := l.PutPolicy(t.Context(), ops, decode(t, text), "a test", If{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Publish(t.Context(), ops, "shop", Publish{Step: StepAll}, "a test", func(*Publication, *Revision, *Revision) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, tier := range []string{"gold", "free", "inf", "other"} {
		mustTier(t, l, tier)
		mustEdit(t, l, directory.Edit{Client: "user:" + tier, Action: directory.ActionSetTier, Tier: tier})
	}
	mustEdit(t, l, directory.Edit{Client: "user:own", Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"77/1m"}, Until: time.Now().Add(time.Hour)})
	mustEdit(t, l, directory.Edit{Client: "user:own", Action: directory.ActionSetLimits, Rule: "*", Limits: []string{"88/1m"}})
	mustEdit(t, l, directory.Edit{Client: "user:each", Action: directory.ActionSetLimits, Rule: "*", Limits: []string{"88/1m"}})
	mustEdit(t, l, directory.Edit{Client: "user:each", Action: directory.ActionBlock})
	mustEdit(t, l, directory.Edit{Client: "user:ended", Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"77/1m"}, Until: time.Now().Add(time.Hour)})
	if _, err := l.Pool.Exec(t.Context(), "UPDATE overrides SET until = now() WHERE id = 'ended'"); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"id = 'gold' AND rule_name = 'api'":    "{50/1m,500/1h} tier false",
		"id = 'free' AND rule_name = 'api'":    "{1/1m} tier false",
		"id = 'inf' AND rule_name = 'api'":     "{unlimited} tier false",
		"id = 'other' AND rule_name = 'api'":   "{5/1m} rule false",
		"id = 'gold' AND rule_name = 'search'": "{7/1m} rule false",
		"id = 'own' AND rule_name = 'api'":     "{77/1m} client false",
		"id = 'each' AND rule_name = 'api'":    "{88/1m} client true",
		"id = 'each' AND rule_name = 'all'":    "{9/1m} rule true",
		"id = 'ended' AND rule_name = 'api'":   "{5/1m} rule false",
	} {
		var got string
		if err := l.Pool.QueryRow(t.Context(), "SELECT limits::text || ' ' || source || ' ' || blocked FROM client_quotas WHERE "+query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", query, got, err, want)
		}
	}
	var others int
	if err := l.Pool.QueryRow(t.Context(), "SELECT count(*) FROM client_quotas WHERE rule_name = 'off' OR rule_name = 'search' AND id <> 'gold'").Scan(&others); err != nil || others != 0 {
		t.Errorf("%d rows of rules that do not apply, %v", others, err)
	}
}
