// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policyfile"
)

const priced = `
name: shop
tier: {attr: tier}
rules:
- {name: api, limit: [100/1m, 50/60s sl, 5000/day], tiers: {pro: 1000/1m, lead: unlimited}}
- {name: off, enabled: false, limit: 1/1m}
`

// TestLimitsAreShown: the limits of an enabled rule with the same window are one series, which
// shows the least of them. A tier without a limit is shown as infinite.
func TestLimitsAreShown(t *testing.T) {
	var p Policies
	d := document(t, priced)
	p.Show("a", d, func() error { return nil })
	want := []string{
		"shop api  60s 50", "shop api  day 5000", "shop api lead  +Inf", "shop api pro 60s 1000", // limits
		"shop " + d.Version() + " 1", // the version
		"shop 0",                     // not refused
		"0",                          // none omitted
	}
	slices.Sort(want)
	if got := series(t, &p); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	p.Hide("a")
	if got := series(t, &p); !slices.Equal(got, []string{"0"}) {
		t.Errorf("after it is gone: %q", got)
	}
}

// TestTwoPoliciesOfOneName: during a reload two configurations run. Each version is shown, the
// limits are those of the later one, and a rejected edit of either is shown.
func TestTwoPoliciesOfOneName(t *testing.T) {
	var p Policies
	before, now := document(t, "name: shop\nrules: [{name: api, limit: 1/1m}]\n"), document(t, "name: shop\nrules: [{name: api, limit: 2/1m}]\n")
	p.Show(1, before, func() error { return errors.New("no") })
	p.Show(2, now, func() error { return nil })
	want := []string{"shop api  60s 2", "shop " + before.Version() + " 1", "shop " + now.Version() + " 1", "shop 1", "0"}
	slices.Sort(want)
	if got := series(t, &p); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSeriesOfLimitsAreBounded: the limits beyond the bound are counted, in one policy and in
// several.
func TestSeriesOfLimitsAreBounded(t *testing.T) {
	const rules, beyond = 1000, 7
	many := func(name string, n int) *policyfile.Document {
		d := &policyfile.Document{Name: name}
		for i := range n {
			d.Rules = append(d.Rules, policyfile.Rule{Name: fmt.Sprintf("r%d", i), Limit: policyfile.Words{"1/1m"}})
		}
		return d
	}
	for _, shares := range [][]int{{limitSeriesMax + beyond}, {rules, limitSeriesMax - rules + beyond}} {
		var p Policies
		for i, n := range shares {
			p.Show(i, many(fmt.Sprint("p", i), n), func() error { return nil })
		}
		got := series(t, &p)
		if limits := len(got) - 2*len(shares) - 1; limits != limitSeriesMax || !slices.Contains(got, fmt.Sprint(beyond)) {
			t.Errorf("%v: %d series of limits, want %d and %d omitted", shares, limits, limitSeriesMax, beyond)
		}
	}
}

// TestDenialsByTier: a tier that the policy does not name has no label of its own, so that a client
// cannot create series.
func TestDenialsByTier(t *testing.T) {
	d := document(t, priced)
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	m := New()
	denials := m.DenialsOf(d, rs)
	denied := []core.RuleOutcome{{Ruleset: rs, Index: 0, Outcome: core.OutcomeDenied}, {Ruleset: new(core.Ruleset), Outcome: core.OutcomeDenied},
		{Ruleset: rs, Index: 0, Outcome: core.OutcomeAllowed}, {Ruleset: rs, Index: -1, Outcome: core.OutcomeDenied}}
	for _, tier := range []string{"", "pro", "pro", "made-up-1", "made-up-2", "made-up-3"} {
		denials.Count(denied, tier)
	}
	if got, want := series(t, m.Denials), []string{"shop api  1", "shop api other 3", "shop api pro 2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { denials.Count(denied, "pro"); denials.Count(denied, "made-up-4") }); n != 0 {
		t.Errorf("counting allocates %v times", n)
	}
}

// TestTheFirstRejectedEditIsAnIncrease: the counters of a policy's edits exist before the first
// edit.
func TestTheFirstRejectedEditIsAnIncrease(t *testing.T) {
	m := New()
	m.Followed("shop")
	m.Reloaded("shop", false)
	if got, want := series(t, m.Reloads), []string{"shop accepted 0", "shop refused 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
