// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/operator"
)

// TestUnitsTogether: the units of regions that lend each other units are added. Regions that tell
// each other what they count have the same units, so the units of the region that has counted most
// are printed.
func TestUnitsTogether(t *testing.T) {
	for _, c := range []struct {
		name   string
		gossip bool
		used   [3]int64
		want   string
	}{
		{"lease", false, [3]int64{5, 4, 6}, "together 15 285"},
		{"gossip", true, [3]int64{90, 100, 80}, "together 100 0"},
		{"gossip, unused", true, [3]int64{}, "together 0 100"},
	} {
		var asked []*regionUnits
		for i, used := range c.used {
			r := &regionUnits{Region: []string{"us", "eu", "ap"}[i]}
			r.report.Counters = []operator.Counter{{Policy: "shop", Rule: "all", Limit: "100/1h", Gossip: c.gossip, Used: used, Remaining: 100 - used}}
			asked = append(asked, r)
		}
		var out strings.Builder
		if writeUnits(&out, "header.x-user:ann", asked); !strings.Contains(strings.Join(strings.Fields(out.String()), " "), c.want) {
			t.Errorf("%s: want %q:\n%s", c.name, c.want, out.String())
		}
	}
}
