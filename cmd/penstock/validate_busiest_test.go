// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestValidateNamesTheBusiestRequest: a request of more than 64 checks is denied, so validate names
// a request that comes close. For other policies it prints no such line.
func TestValidateNamesTheBusiestRequest(t *testing.T) {
	for rules, want := range map[int]string{
		1:  "",
		31: "",
		32: "; POST /api/x meets 32 limits, and a request of more than 64 is denied\n",
		33: "; POST /api/x of a client of tier \"gold\" meets 64 limits, and a request of more than 64 is denied\n",
	} {
		var text strings.Builder
		text.WriteString("name: shop\nidentify: [{api_key: {keys_file: keys.toml}}, {ip: {}}]\nrules:\n")
		for i := range rules {
			// One limit each. Clients of the tier gold have one more limit in all but two of the 33
			// rules.
			tiers := ""
			if rules == 33 && i < 31 {
				tiers = ", tiers: {gold: [1000/1m, 10000/1h]}"
			}
			fmt.Fprintf(&text, "  - {name: r%d, per: [ip], match: {path: /api/*, method: POST}, limit: %d/1m%s}\n", i, 10+i, tiers)
		}
		out, diagnostics, err := run(t, "", "validate", file(t, "policy.yaml", text.String()))
		if err != nil || !strings.HasSuffix(out, want) || want == "" && strings.Contains(out, "is denied") {
			t.Errorf("%d rules: %v\n%s%s\nwant %q", rules, err, out, diagnostics, want)
		}
	}
}
