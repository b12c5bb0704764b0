// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/request"
)

// shared returns a policy whose candidate is enforced for a share of the clients.
func shared(t *testing.T, share int32, candidate string) *policyfile.Document {
	t.Helper()
	var both [2]*policyfile.Document
	for i, text := range []string{"name: shop\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: api, limit: 100/30d}]", candidate} {
		var err error
		if both[i], err = policyfile.Decode("p.yaml", policyfile.YAML, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	both[0].SetCandidate(&policyfile.Candidate{Document: both[1], Share: share})
	return both[0]
}

func openShared(d *policyfile.Document) (*live.Policy, *live.Verifiers, error) {
	quiet := slog.New(slog.DiscardHandler)
	verifiers := live.NewVerifiers(quiet)
	named := func(d *policyfile.Document) error { d.Name += "-site"; return nil }
	if err := live.CompleteAll(d, named); err != nil {
		return nil, nil, err
	}
	p, err := live.Open(live.Options{Source: live.Fixed(d), First: d, Verifiers: verifiers, Metrics: metrics.New(), Logger: quiet, Complete: named})
	return p, verifiers, err
}

const keyed = "name: shop\nidentify: [{api_key: {keys: directory}}, {header: {name: X-User, unverified: true}}]\nrules: [{name: api, limit: 1/30d}]"

// TestACandidateDecidesForItsClients tests that a candidate decides and counts the requests of its
// share of the clients, and that it uses the counters of the policy in force.
func TestACandidateDecidesForItsClients(t *testing.T) {
	p, verifiers, err := openShared(shared(t, 9999, keyed))
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	v := p.Current()
	if v.Candidate() == nil || v.Candidate().Candidate() != nil || v.Candidate().Document.Name != "shop-site" {
		t.Fatalf("the candidate is %+v", v.Candidate())
	}
	plan, a := new(core.Plan), &request.Attributes{PathText: "/", Headers: map[string]string{"X-User": "ann"}}
	decide := func(now *live.Version) (*live.Version, bool) {
		plan.Reset()
		by := now.Add(plan, a)
		if len(plan.Checks()) > 0 {
			if err := store.Take(t.Context(), plan.Checks(), plan.Results()); err != nil {
				t.Fatal(err)
			}
		}
		d := plan.Decide()
		by.Count(plan, &d)
		return by, d.Denied()
	}
	if by, denied := decide(v); by != v.Candidate() || denied {
		t.Fatalf("the first request is denied: %t, by %s", denied, by.ID)
	}
	if by, denied := decide(v.Candidate()); by != v.Candidate() || !denied {
		t.Fatalf("the second request is denied: %t, by %s", denied, by.ID)
	}
	a.Headers = nil // a request without a client and without an address is never in a share
	if by, denied := decide(v.Candidate()); by != v || denied {
		t.Fatalf("a request without a client is denied: %t, by %s", denied, by.ID)
	}
	if published, admitted, denied, ok := v.Tried(); !ok || published != "" || admitted != 1 || denied != 1 {
		t.Errorf("the candidate has admitted %d and denied %d, %t", admitted, denied, ok)
	}
	if _, _, _, ok := v.Candidate().Tried(); ok {
		t.Error("the candidate has a candidate")
	}
	a.Headers = map[string]string{"X-User": "ann"}
	if n := testing.AllocsPerRun(racescale.Fewer(100), func() { plan.Reset(); v.Add(plan, a) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if err := p.Close(); err != nil || verifiers.Len() != 0 {
		t.Errorf("%d verifiers are left open, %v", verifiers.Len(), err)
	}
}

// TestAnInvalidCandidateIsRejected tests that a publication whose candidate the node cannot compile
// does not come into force.
func TestAnInvalidCandidateIsRejected(t *testing.T) {
	_, verifiers, err := openShared(shared(t, 1, "name: shop\nrules: [{name: api, limit: 1/1fortnight}]"))
	if err == nil || !strings.Contains(err.Error(), "the candidate for a share of the clients") {
		t.Errorf("the error is %v", err)
	}
	if verifiers.Len() != 0 {
		t.Error("verifiers are left open")
	}
}
