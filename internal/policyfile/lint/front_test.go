// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/policyfile"
)

// TestBeyond: a policy is rejected if and only if the front cannot enforce it.
func TestBeyond(t *testing.T) {
	for _, c := range []struct {
		name, rules       string
		caddy, envoy, rls []string
	}{
		{name: "nothing of its own", rules: "identify: [ip]\nrules: [{name: a, limit: 1/1s}]"},
		{name: "one front's attribute alone", rules: "identify: [{attr: http.auth.user.id}]\nrules: [{name: a, limit: 1/1s}]",
			envoy: []string{"identify[0]"}},
		{name: "beside another's", rules: "identify: [{attr: http.auth.user.id}, {attr: 'metadata.filter_metadata.[a.b].sub'}]\nrules: [{name: a, limit: 1/1s}]"},
		{name: "sources", rules: "tier: {attr: 'metadata.filter_metadata.x.tier'}\nuser: [{attr: http.auth.user.id}]\nrules: [{name: a, limit: 1/1s}]",
			caddy: []string{"tier[0]"}, envoy: []string{"user[0]"}},
		{name: "per and match", rules: "rules: [{name: a, per: ['attr:xds.route_name'], match: {attr: {http.vars.a: b}}, limit: 1/1s, " +
			"cost: [{match: {attr: {http.vars.c: []}}, n: 2}]}]",
			caddy: []string{"rules[0].per[0]"}, envoy: []string{"rules[0].match.attr.http.vars.a", "rules[0].cost[0].match.attr.http.vars.c"}},
		{name: "responses and waits", rules: "rules: [{name: a, limit: 10/1s, cost_after: {header: X-C, estimate: 1}}, {name: b, limit: 1/1s, count_if: {status: 401}}, " +
			"{name: c, limit: 1/1s, refund_on: {status: 5xx}}, {name: d, limit: 1/1s, action: throttle, throttle: {max_delay: 1s, max_waiting: 5}}]",
			rls: []string{"rules[0].cost_after", "rules[1].count_if", "rules[2].refund_on", "rules[3].action"}},
		{name: "keys of the directory", rules: "identify: [ip, {api_key: {keys: directory}}]\nrules: [{name: a, limit: 1/1s}]"},
		{name: "a rule that is off", rules: "rules: [{name: a, limit: 1/1s}, {name: b, enabled: false, limit: 1/1s, refund_on: {status: 5xx}}]"},
	} {
		d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte("name: shop\n"+c.rules))
		if err != nil {
			t.Fatal(c.name, err)
		}
		for front, want := range map[Front][]string{FrontCaddy: c.caddy, FrontEnvoy: c.envoy, FrontRLS: c.rls} {
			var got []string
			for _, p := range Beyond(d, front) {
				got = append(got, p.Path)
				if !strings.HasPrefix(p.Place, "policy.yaml:") || p.Why == "" || p.Remedy == "" {
					t.Errorf("%s, %s: %+v has no place, reason or remedy", c.name, front, p)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s:\n%s", c.name, front, diff)
			}
		}
	}
}
