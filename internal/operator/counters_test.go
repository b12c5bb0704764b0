// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// desk returns a desk over two policies, and a client that has used some units.
func desk(t testing.TB) (*operator.Desk, *operator.Client) {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	client, err := operator.Parse(operator.Words{Client: "ip:192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	var policies []operator.Policy
	for _, text := range []string{
		"name: shop\nrules: [{name: own, limit: 5/1h fixed_window}, {name: shared, per: [], limit: 50/1h fixed_window}]\n",
		"name: api\npenalty: {window: 1h, threshold: 1}\nrules: [{name: tight, limit: 1/1h fixed_window}]\n",
	} {
		d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		rs, err := d.Compile()
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, operator.Policy{Ruleset: rs, Document: d})
	}
	for range 2 {
		for _, p := range policies {
			var plan core.Plan
			plan.Add(p.Ruleset, client)
			if err := store.Take(context.Background(), plan.Checks(), plan.Results()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &operator.Desk{Store: store, Policies: func() []operator.Policy { return policies }}, client
}

// formatReport formats a report in one line: the remaining units of each counter and the penalties.
func formatReport(r *operator.Report) string {
	var parts []string
	for _, c := range r.Counters {
		parts = append(parts, fmt.Sprintf("%s/%s:%d", c.Policy, c.Rule, c.Remaining))
	}
	for _, p := range r.Penalties {
		parts = append(parts, fmt.Sprintf("%s penalty:%t", p.Policy, p.InForce))
	}
	return strings.Join(parts, " ")
}

func TestAnOperatorLooksResetsAndLifts(t *testing.T) {
	desk, client := desk(t)
	look := func() string {
		t.Helper()
		r, err := desk.Look(t.Context(), client, operator.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		return formatReport(r)
	}
	const before = "shop/own:3 shop/shared:48 api/tight:0 api penalty:true"
	for range 3 { // a look charges nothing
		if got := look(); got != before {
			t.Fatalf("%s, want %s", got, before)
		}
	}
	if _, err := desk.Lift(t.Context(), client, operator.Selection{Policy: "api"}); err != nil {
		t.Fatal(err)
	}
	if got, want := look(), strings.Replace(before, "true", "false", 1); got != want {
		t.Errorf("lifted: %s, want %s", got, want)
	}
	if _, err := desk.Reset(t.Context(), client, operator.Selection{}); err != nil {
		t.Fatal(err)
	}
	if got, want := look(), "shop/own:5 shop/shared:48 api/tight:1 api penalty:false"; got != want {
		t.Errorf("reset: %s, want %s: a counter that others share stays", got, want)
	}
	if _, err := desk.Reset(t.Context(), client, operator.Selection{Rule: "shared"}); err != nil {
		t.Fatal(err)
	}
	if got, want := look(), "shop/own:5 shop/shared:50 api/tight:1 api penalty:false"; got != want {
		t.Errorf("the shared counter reset by name: %s, want %s", got, want)
	}
}

func TestMistakesAreReported(t *testing.T) {
	desk, client := desk(t)
	for want, s := range map[error]operator.Selection{
		operator.ErrUnknown: {Policy: "shop", Rule: "tight"}, operator.ErrSelection: {Policy: "api", Rule: "tight"},
	} {
		if _, err := desk.Lift(t.Context(), client, s); !errors.Is(err, want) {
			t.Errorf("%+v: error %v, want one that is %v", s, err, want)
		}
	}
	desk.Store = failingStore{}
	if _, err := desk.Look(t.Context(), client, operator.Selection{}); !errors.Is(err, operator.ErrStore) ||
		!errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("without a store: %v", err)
	}
}

// failingStore is a store that does not answer.
type failingStore struct{}

func (failingStore) Take(context.Context, []counter.Check, []counter.Result) error {
	return counter.ErrUnavailable
}

// TestLookHasTheLastDenials: a look shows the client's latest denials, restricted to the selection.
func TestLookHasTheLastDenials(t *testing.T) {
	desk, client := desk(t)
	asked := ""
	desk.Denials = func(name string) []events.Event {
		asked = name
		return []events.Event{{Kind: events.KindDenied, Policy: "shop", Rule: "api"}, {Kind: events.KindDenied, Policy: "other", Rule: "api"}}
	}
	for _, c := range []struct {
		selection operator.Selection
		want      int
	}{{operator.Selection{}, 2}, {operator.Selection{Policy: "shop"}, 1}} {
		found, err := desk.Look(t.Context(), client, c.selection)
		if err != nil || len(found.Denials) != c.want || asked != client.String() {
			t.Errorf("%+v: %v, %+v of %q", c.selection, err, found, asked)
		}
	}
}
