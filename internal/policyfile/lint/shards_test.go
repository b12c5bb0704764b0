// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

// TestDiffOfShards: the diff states whether counters are kept when the shards of a rule change.
func TestDiffOfShards(t *testing.T) {
	for _, test := range []struct{ before, after, want string }{
		{"rules: [{name: a, limit: 8/1s}]", "rules: [{name: a, limit: 8/1s, shards: 4}]",
			"rules changed: a (shards); counters that start at zero: a: it has 4 shards"},
		{"rules: [{name: a, limit: 8/1s, shards: 4}]", "rules: [{name: a, limit: 8/1s}]",
			"rules changed: a (shards); counters that start at zero: a: it has no shards"},
		{"rules: [{name: a, limit: 8/1s, shards: 2}]", "rules: [{name: a, limit: 16/1s, shards: 8}]",
			"rules changed: a (limit, shards); counters that start at zero: a: the new 6 of 8 shards"},
		{"rules: [{name: a, limit: 8/1s, shards: 8}]", "rules: [{name: a, limit: 8/1s, shards: 2}]",
			"rules changed: a (shards); counters that start at zero: a: the use of the last 6 of 8 shards is no longer counted"},
	} {
		got := Diff(decoded(t, test.before), decoded(t, test.after))
		if got.String() != test.want {
			t.Errorf("%s\n-> %s\n%s\nwant %s", test.before, test.after, got.String(), test.want)
		}
	}
}

func TestAdviseOnShards(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"rules: [{name: a, shards: 2, limit: 8/1m}]", []string{`rules[0].shards: "2": has no use, because many counters are spread already`}},
		{"rules: [{name: a, shards: 2, per: [api_key, host], limit: 8/1m}]", []string{`rules[0].shards: "2": has no use`}},
		{"lease: auto\nrules: [{name: a, shards: 2, per: [], limit: 8/1m}]",
			[]string{`lease: "auto": has no effect: no rule has a limit that can be leased`}},
		{"rules: [{name: a, shards: 2, per: [], limit: 8/1m}, {name: b, shards: 2, per: [tenant], limit: 8/1h}]", nil},
	} {
		wantAdvice(t, test.text, test.want)
	}
}

// TestShardsProblems: problems with shards are reported with their place. Files and Caddyfiles
// share this check, because both are read into the same words.
func TestShardsProblems(t *testing.T) {
	for text, want := range map[string]string{
		"shards: 0":                   `rules[0] "a".shards: "0": is not between 2 and 64; write another, or leave it out`,
		"shards: 1":                   `rules[0] "a".shards: "1": is not between 2 and 64`,
		"shards: 65":                  `rules[0] "a".shards: "65": is not between 2 and 64`,
		"shards: many":                `rules[0] "a".shards: "many"`,
		"shards: 7":                   `rules[0] "a".limit[0]: "12/1m": has a count of 12, which 7 shards cannot divide evenly; write a count of 7 or 14, or other shards`,
		"shards: 4, lease: auto":      `rules[0] "a".shards: "4": does not go with lease: auto`,
		"shards: 4, cost: 5":          `rules[0] "a".cost[0].n: "5": can never pass one of 4 shards of limit[0], 12/1m; lower it to 3`,
		"shards: 4, tiers: {a: 6/1m}": `rules[0] "a".tiers.a[0]: "6/1m": has a count of 6`,
	} {
		d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte("tier: {attr: t}\nrules:\n- name: a\n  limit: 12/1m\n  "+strings.ReplaceAll(text, ", ", "\n  ")+"\n"))
		if err == nil {
			err = d.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "p.yaml:") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
