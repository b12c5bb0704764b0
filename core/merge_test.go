// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMerge: each case would differ if its rule were wrong.
func TestMerge(t *testing.T) {
	ours := Telling{"10", "4", "1700000060", `"api";r=4`, `"api";q=10`, "", "3"}
	theirs := map[Told][]string{ToldLimit: {"50"}, ToldRemaining: {"3"}, ToldRateLimit: {`"up";r=3`, "", " ", ` "b";r=9 `}, ToldRetryAfter: {"9"}}
	lists := `"api";r=4, "up";r=3, "b";r=9`
	kept := Telling{"", "", "", lists, `"api";q=10`, "", ""}
	replaced := Telling{"10", "4", "1700000060", lists, `"api";q=10`, "", "3"}
	for name, c := range map[string]struct {
		ours      Telling
		remaining string // theirs; "-" for none
		yields    bool
		want      Telling
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
		"we have nothing to say":     {Telling{}, "9", false, Telling{}},
		"a refusal":                  {Telling{ToldRetryAfter: "30"}, "3", false, Telling{ToldRetryAfter: "30"}},
	} {
		got := c.ours
		got.Merge(4, c.yields, func(f Told) []string {
			switch {
			case f != ToldRemaining:
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
		ours := Telling{"10", "4", "1700000060", `"api";r=4`, `"api";q=10`, "", "3"}
		ours.Merge(4, false, func(f Told) []string { return header[ToldNames[f]] })
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTellingOfFields(t *testing.T) {
	f := Fields{Limit: "a", Remaining: "b", Reset: "c", RateLimit: "d", Policy: "e", RetryAfter: "f", Cost: "g", Authenticate: "h"}
	told := f.Telling()
	if told != (Telling{"a", "b", "c", "d", "e", "f", "g"}) {
		t.Errorf("%q", told)
	}
	if told.Correct(12); told[ToldCost] != "12" {
		t.Errorf("the cost is %q", told[ToldCost])
	}
	none := Telling{}
	if none.Correct(12); none[ToldCost] != "" {
		t.Error("a cost is told of where none was")
	}
}
