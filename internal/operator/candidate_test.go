// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// TestAnOperatorSeesThePolicyOfTheClient tests that a look shows the counters under the policy that
// decides the client's requests, and that a reset also resets the client's counters under the other
// policy.
func TestAnOperatorSeesThePolicyOfTheClient(t *testing.T) {
	var documents [2]*policyfile.Document
	for i, text := range []string{"name: shop\nrules: [{name: api, limit: 5/30d}]\n", "name: shop\nrules: [{name: api, limit: 8/30d}, {name: new, limit: 3/30d}]\n"} {
		var err error
		if documents[i], err = policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	documents[0].SetCandidate(&policyfile.Candidate{Document: documents[1], Share: 5000})
	quiet := slog.New(slog.DiscardHandler)
	p, err := live.Open(live.Options{Source: live.Fixed(documents[0]), Verifiers: live.NewVerifiers(quiet), Metrics: metrics.New(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	v := p.Current()
	desk := &operator.Desk{Store: store, Policies: func() []operator.Policy {
		return []operator.Policy{{Ruleset: v.Ruleset, Document: v.Document, Candidate: operator.CandidateOf(v)}}
	}}
	seen := map[string]bool{}
	for _, address := range strings.Fields("192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 2001:db8:1::1 2001:db8:2::1 2001:db8:3::1") {
		client, err := operator.Parse(operator.Words{Client: "ip:" + address})
		if err != nil {
			t.Fatal(err)
		}
		var plan core.Plan
		by, want := v.Add(&plan, client), "shop/api:4"
		if by == v.Candidate() {
			want = "shop/api:7 shop/new:2"
		}
		if err := store.Take(t.Context(), plan.Checks(), plan.Results()); err != nil {
			t.Fatal(err)
		}
		r, err := desk.Look(t.Context(), client, operator.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		if got := formatReport(r); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
		seen[want] = true
		if r, err = desk.Reset(t.Context(), client, operator.Selection{Rule: "new"}); err != nil || formatReport(r) != "shop/new:3" {
			t.Errorf("%s: after a reset of the candidate's rule: %s, %v", address, formatReport(r), err)
		}
	}
	if len(seen) != 2 {
		t.Errorf("all clients have one policy: %v", seen)
	}
}
