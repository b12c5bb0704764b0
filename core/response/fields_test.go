// SPDX-License-Identifier: Apache-2.0

package response_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/response"
)

// TestMerge: each case tests one rule of Merge.
func TestMerge(t *testing.T) {
	ours := response.Fields{"10", "4", "1700000060", `"api";r=4`, `"api";q=10`, "", "3"}
	theirs := map[response.Field][]string{response.FieldLimit: {"50"}, response.FieldRemaining: {"3"}, response.FieldRateLimit: {`"up";r=3`, "", " ", ` "b";r=9 `}, response.FieldRetryAfter: {"9"}}
	lists := `"api";r=4, "up";r=3, "b";r=9`
	kept := response.Fields{"", "", "", lists, `"api";q=10`, "", ""}
	replaced := response.Fields{"10", "4", "1700000060", lists, `"api";q=10`, "", "3"}
	for name, c := range map[string]struct {
		ours      response.Fields
		remaining string // theirs; "-" for none
		yields    bool
		want      response.Fields
	}{
		"theirs is smaller":          {ours, "3", false, kept},
		"with spaces around":         {ours, " 3 ", false, kept},
		"as small":                   {ours, "4", false, replaced},
		"larger":                     {ours, "5", false, replaced},
		"negative is absurd":         {ours, "-1", false, replaced},
		"no number":                  {ours, "few", false, replaced},
		"none":                       {ours, "-", false, replaced},
		"larger, and it has refused": {ours, "500", true, kept},
		"none, and it has refused":   {ours, "-", true, replaced},
		"we have nothing to say":     {response.Fields{}, "9", false, response.Fields{}},
		"a denial":                   {response.Fields{response.FieldRetryAfter: "30"}, "3", false, response.Fields{response.FieldRetryAfter: "30"}},
	} {
		got := c.ours
		got.Merge(4, c.yields, func(f response.Field) []string {
			switch {
			case f != response.FieldRemaining:
				return theirs[f]
			case c.remaining == "-":
				return nil
			default:
				return []string{c.remaining, "0"}
			}
		})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestMergeAllocatesNothing(t *testing.T) {
	header := map[string][]string{"x-ratelimit-remaining": {"3"}}
	if n := testing.AllocsPerRun(100, func() {
		ours := response.Fields{"10", "4", "1700000060", `"api";r=4`, `"api";q=10`, "", "3"}
		ours.Merge(4, false, func(f response.Field) []string { return header[response.FieldNames[f]] })
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCorrect(t *testing.T) {
	f := response.Fields{response.FieldCost: "3"}
	if f.Correct(12); f[response.FieldCost] != "12" {
		t.Errorf("the cost is %q", f[response.FieldCost])
	}
	none := response.Fields{}
	if none.Correct(12); !none.Empty() || f.Empty() {
		t.Errorf("%q and %q", none, f)
	}
}
