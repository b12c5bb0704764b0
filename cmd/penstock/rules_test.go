// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/operator"
)

// TestRulesAreATable tests the tables of policies and rules: conditions, limits by tier, rules that
// are off, fields of a later release, and texts with control characters.
func TestRulesAreATable(t *testing.T) {
	const reply = `{"policies":[{"name":"shop","version":"440f83788072","place":":8080","file":"/etc/policy.yaml","policy":{"name":"shop","rules":[
		{"name":"api","match":{"path":["/a/*","/b"],"header":{"X-A":"b*","X-C":[]},"later":{"a":1}},"limit":["5/1s","100/1h"],"tiers":{"silver":"unlimited","gold":["9/1s","8/1h"]}},
		{"name":"closed\u001b[2J","match":{"method":"PUT"},"action":"block","later":true},
		{"name":"quiet","limit":"1/1m","action":"log_only","enabled":false}]}},
		{"name":"empty","version":"181d82469eb1","policy":{}}]}`
	const want = `POLICY         VERSION       FILE
shop at :8080  440f83788072  /etc/policy.yaml
empty          181d82469eb1  -

POLICY         RULE             ACTION  MATCH                                         LIMIT         TIERS
shop at :8080  api              reject  header X-A=b*, X-C; later a=1; path /a/*, /b  5/1s, 100/1h  gold 9/1s, 8/1h; silver unlimited
shop at :8080  "closed\x1b[2J"  block   method PUT                                    -             -
shop at :8080  quiet            off     -                                             1/1m          -
`
	var out strings.Builder
	if err := printRules(&out, []byte(reply)); err != nil || out.String() != want {
		t.Errorf("%v\n%swant\n%s", err, out.String(), want)
	}
	out.Reset()
	if err := printRules(&out, []byte(`{"policies":[]}`)); err != nil || out.String() != "no policy is in force\n" {
		t.Errorf("without a policy: %v %q", err, out.String())
	}
}

// TestResetsAndLiftsArePrinted tests what a reset and a lifted penalty print.
func TestResetsAndLiftsArePrinted(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	report := &usageReport{Client: "user:ann", Counters: []operator.Counter{{Policy: "shop", Rule: "api", Limit: "3/1m", Whose: "the rule", Remaining: 3}},
		Penalties: []operator.Penalty{{Policy: "shop"}, {Policy: "other"}}}
	nothing := &usageReport{Client: "user:ann\x1b"}
	for _, c := range []struct {
		print func(*strings.Builder) error
		want  string
	}{
		{func(b *strings.Builder) error { return report.printReset(b, now) }, "user:ann has these limits in full again:\n" +
			"POLICY  RULE  LIMIT  WHOSE     USED  REMAINING  RESETS\nshop    api   3/1m   the rule  0     3          -\n"},
		{func(b *strings.Builder) error { return nothing.printReset(b, now) }, `no limit counts "user:ann\x1b" alone, so nothing was reset` + "\n"},
		{func(b *strings.Builder) error { return report.printLift(b, now) }, "policy shop: no penalty is in force for user:ann, and its violations are forgotten\n" +
			"policy other: no penalty is in force for user:ann, and its violations are forgotten\n"},
		{func(b *strings.Builder) error { return nothing.printLift(b, now) }, `no policy has penalties for "user:ann\x1b"` + "\n"},
	} {
		var out strings.Builder
		if err := c.print(&out); err != nil || out.String() != c.want {
			t.Errorf("%v: printed\n%swant\n%s", err, out.String(), c.want)
		}
	}
}
