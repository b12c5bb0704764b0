// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// TestClientShowsUnits tests that "penstock client show" prints how many units of a client's limit
// each region has. If the Redis of a region does not answer, the command names that region, and
// prints the units of the other regions.
func TestClientShowsUnits(t *testing.T) {
	t.Parallel()
	l := startLending(t, lendingPolicy)
	show := func(user string, more ...string) []string {
		args := []string{"client", "show", "header.x-user:" + user, "--policy-file", l.policy}
		for _, name := range l.names {
			args = append(args, "--in-region", name+"="+l.redis[name].URL())
		}
		return append(args, more...)
	}
	check := func(out string, rows ...string) {
		t.Helper()
		for _, row := range rows {
			if !regexp.MustCompile(`(?m)^shop +all +` + row + `$`).MatchString(out) {
				t.Errorf("no row matches %q:\n%s", row, out)
			}
		}
	}
	check(penstock(t, show("bob")...).mustSucceed(t), `us +15/.* 0 +15`, `eu +9/.* 0 +9`, `ap +6/.* 0 +6`, `together +0 +30`)
	l.admitAll("ap", "ann", 30)
	check(penstock(t, show("ann")...).mustSucceed(t), `us +15/.* 15 +0`, `eu +9/.* 9 +0`, `ap +6/.* 6 +0`, `together +30 +0`)

	l.redis["eu"].Kill()
	r := penstock(t, show("ann")...)
	if r.status != 1 || !strings.Contains(r.diagnostics, "region eu: ") {
		t.Errorf("status %d: %s", r.status, r.diagnostics)
	}
	check(r.out, `us +15/.* 15 +0`, `ap +6/.* 6 +0`, `together +21 +0`)
	var regions []struct{ Region, Error string }
	if err := json.Unmarshal([]byte(penstock(t, show("ann", "--json")...).out), &regions); err != nil || len(regions) != 3 || regions[0].Error != "" ||
		regions[1].Region != "eu" || regions[1].Error == "" {
		t.Errorf("%+v, %v", regions, err)
	}

	penstock(t, show("ann", "--in-region", "us=redis://localhost:1")...).mustFail(t, "given twice")
	penstock(t, show("ann", "--region", "us")...).mustFail(t, "keep one")
	penstock(t, show("ann", "--policy-file", "")...).mustFail(t, "--policy-file FILE")
	penstock(t, "client", "show", "header.x-user:ann", "--policy-file", l.policy, "--in-region", "mars="+l.redis["us"].URL()).mustFail(t, "mars")
}
