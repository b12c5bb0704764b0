// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBeyond: a policy is refused where a front could not carry it out, and only there.
func TestBeyond(t *testing.T) {
	for _, c := range []struct {
		name, rules       string
		caddy, envoy, rls []string
	}{
		{"nothing of its own", "identify: [ip]\nrules: [{name: a, limit: 1/1s}]", nil, nil, nil},
		{"one front's attribute alone", "identify: [{attr: http.auth.user.id}]\nrules: [{name: a, limit: 1/1s}]",
			nil, []string{"identify[0]"}, nil},
		{"beside another's", "identify: [{attr: http.auth.user.id}, {attr: 'metadata.filter_metadata.[a.b].sub'}]\nrules: [{name: a, limit: 1/1s}]",
			nil, nil, nil},
		{"sources", "tier: {attr: 'metadata.filter_metadata.x.tier'}\nuser: [{attr: http.auth.user.id}]\nrules: [{name: a, limit: 1/1s}]",
			[]string{"tier[0]"}, []string{"user[0]"}, nil},
		{"per and match", "rules: [{name: a, per: ['attr:xds.route_name'], match: {attr: {http.vars.a: b}}, limit: 1/1s, " +
			"cost: [{match: {attr: {http.vars.c: []}}, n: 2}]}]",
			[]string{"rules[0].per[0]"}, []string{"rules[0].match.attr.http.vars.a", "rules[0].cost[0].match.attr.http.vars.c"}, nil},
		{"responses and waits", "rules: [{name: a, limit: 10/1s, cost_after: {header: X-C, estimate: 1}}, {name: b, limit: 1/1s, count_if: {status: 401}}, " +
			"{name: c, limit: 1/1s, refund_on: {status: 5xx}}, {name: d, limit: 1/1s, action: throttle, throttle: {max_delay: 1s, max_waiting: 5}}]",
			nil, nil, []string{"rules[0].cost_after", "rules[1].count_if", "rules[2].refund_on", "rules[3].action"}},
		{"a rule that is off", "rules: [{name: a, limit: 1/1s}, {name: b, enabled: false, limit: 1/1s, refund_on: {status: 5xx}}]", nil, nil, nil},
	} {
		d, err := Decode("policy.yaml", YAML, []byte("name: shop\n"+c.rules))
		if err != nil {
			t.Fatal(c.name, err)
		}
		for front, want := range map[Front][]string{FrontCaddy: c.caddy, FrontEnvoy: c.envoy, FrontRLS: c.rls} {
			var got []string
			for _, p := range d.Beyond(front) {
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
