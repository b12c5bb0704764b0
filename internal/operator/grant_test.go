// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/directory"
)

// TestGrantable: a grant that would have no effect is rejected with the reason.
func TestGrantable(t *testing.T) {
	p := policyOf(t, "name: shop\ndirectory: true\nrules:\n  - {name: slides, limit: 5/1m}\n  - {name: api, limit: 5/1m, tiers: {gold: [5/1h fixed_window, 9/month]}}\n"+
		"  - {name: spread, shards: 2, limit: 10/1h fixed_window}\n")
	own := &directory.Record{Limits: map[string]directory.Limits{"slides": {Limits: []string{"7/day"}}}}
	for _, c := range []struct {
		rule, window string
		record       *directory.Record
		want         string
	}{
		{"api", "", nil, ""}, {"api", "month", nil, ""}, {"api", "60m", nil, ""}, {"slides", "", own, ""},
		{"slides", "", nil, "no limit with a fixed or calendar window"}, {"api", "day", nil, `windows are ["3600s" "month"]`},
		{"spread", "", nil, "has shards"}, {"none", "", nil, "no policy in force has this rule"}, {"api", "x", nil, "window of a grant"},
	} {
		err := grantable(&directory.Grant{Rule: c.rule, Window: c.window}, c.record, []Policy{*p})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.rule, c.window, err, c.want)
		}
	}
}
