// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/policyfile"
)

func policies(of ...fleet.Policy) []fleet.Policy { return of }

// TestNodesThatCannotDecideByTheClientAreNamed tests which nodes prevent the publication of a
// candidate to a share of the clients, and that made-up names are bounded.
func TestNodesThatCannotDecideByTheClientAreNamed(t *testing.T) {
	able := policies(fleet.Policy{Name: "shop", Published: "v", ByClient: true}, fleet.Policy{Name: "other", Published: "v"}, fleet.Policy{Name: "shop"})
	unable := policies(fleet.Policy{Name: "shop", Published: "v"})
	now := int64(1e15)
	reading := &fleet.Reading{NowMicros: now, Records: []*fleet.Record{
		{Name: "web-1:1", Front: "caddy", SeenMicros: now, Policies: able},
		{Name: "web-2:1", Front: "caddy", SeenMicros: now, Policies: able[1:]},
		{Name: "web-3:1", Front: "bridge", SeenMicros: now - 60e6, Policies: unable}, // silent
	}}
	if got := unableNodes("shop", reading); got != "" {
		t.Errorf("nodes that can are refused: %s", got)
	}
	for _, name := range []string{"b-1:1", "b-2:1"} {
		reading.Records = append(reading.Records, &fleet.Record{Name: name, Front: "bridge", SeenMicros: now, Policies: unable})
	}
	reading.Records = append(reading.Records, &fleet.Record{Name: "old:1", Front: "caddy", SeenMicros: now, Policies: unable})
	if got, want := unableNodes("shop", reading), `some nodes cannot decide by the client: 2 of the kind "bridge" ("b-1:1", "b-2:1"), 1 of the kind "caddy" ("old:1")`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range 1000 {
		reading.Records = append(reading.Records, &fleet.Record{Name: strings.Repeat("\U0010ffff", 60), Front: fmt.Sprint(i % 20), SeenMicros: now, Policies: unable})
	}
	if got := unableNodes("shop", reading); len(got) > 32<<10 || !strings.Contains(got, "and 45 more") {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
}

// TestRequestsOfACandidateForClients tests which requests count towards the bound of a candidate
// for a share of the clients.
func TestRequestsOfACandidateForClients(t *testing.T) {
	tr := &trial{first: map[string]counts{}, last: map[string]count{}}
	record := func(id, version string, admitted, denied uint64) *fleet.Record {
		of := fleet.Policy{Name: "shop", Published: "present", Candidate: &fleet.Candidate{Published: version, Admitted: admitted, Denied: denied}}
		return &fleet.Record{ID: id, Policies: policies(of, of, fleet.Policy{Name: "other", Candidate: of.Candidate}, fleet.Policy{Name: "shop", Published: "present"})}
	}
	weighs := func(nodes int, denied, admitted uint64, records ...*fleet.Record) {
		t.Helper()
		if n, d, a := tr.sumClients("shop", "new", records); n != nodes || d != denied || a != admitted {
			t.Errorf("%d nodes, %d denied, %d admitted; want %d, %d, %d", n, d, a, nodes, denied, admitted)
		}
	}
	weighs(1, 0, 0, record("a", "new", 1000, 500), record("b", "former", 9, 9)) // each record has the policy twice
	weighs(2, 20, 180, record("a", "new", 1090, 510), record("b", "new", 5, 5))
	weighs(2, 26, 194, record("a", "new", 7, 3), record("b", "new", 5, 5)) // node a counts from zero again
	weighs(1, 26, 214, record("b", "new", 15, 5))
	for i := range 3 * fleet.NodesMax {
		weighs(1, 26, 214, record(fmt.Sprint("made up ", i), "new", 1e9, 1e9))
	}
	if n := len(tr.last); n > fleet.NodesMax+1 {
		t.Errorf("%d nodes are remembered, and at most %d are read", n, fleet.NodesMax)
	}
}

// TestSharedCountersAreNotDoubled tests that a candidate for a share of the clients is rejected if
// counters of several clients would exist twice.
func TestSharedCountersAreNotDoubled(t *testing.T) {
	revision := func(n int64, text string) *ledger.Revision {
		d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte("name: shop\nrules: ["+text+"]\n"))
		if err != nil {
			t.Fatal(err)
		}
		return &ledger.Revision{Revision: n, Document: d}
	}
	const all, own = "{name: all, per: [], limit: 5/1m}", "{name: own, limit: 5/1m}"
	now := revision(1, all+", "+own)
	for text, want := range map[string]string{
		"{name: all, per: [], limit: 7/1m}, {name: own, limit: 5/1h}": "", // only own counters are new
		"{name: all, per: [], limit: 5/1h}, " + own:                   `the rules ["all"] count several clients together, and count anew in revision 2`,
		"{name: all, limit: 5/1m}, " + own:                            `the rules ["all"]`,
		all + ", {name: own, per: [ip], limit: 5/1m}":                 `the rules ["own"]`,
		all + ", " + own + ", {name: more, per: [ip], limit: 5/1m}":   "",
		"{name: all, per: [], limit: 5/1m fixed_window}, " + own:      `the rules ["all"]`,
	} {
		err := checkCounters(now, revision(2, text))
		if got := fmt.Sprint(err); (err != nil) != (want != "") || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
