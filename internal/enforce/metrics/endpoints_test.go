// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/request"
)

// TestEndpoints tests that requests are counted by the pattern that matches, never by the path. A
// rule without a path has no series.
func TestEndpoints(t *testing.T) {
	d := document(t, `
name: shop
rules:
  - {name: api, match: {path: [/api/*, /api/v1/users/*/orders]}, limit: 1/1m}
  - {name: one, match: {path: /one}, limit: 1/1m}
  - {name: all, limit: 1/1m}
`)
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	m := New()
	endpoints := m.EndpointsOf(d, rs)
	plan := new(core.Plan)
	ask := func(path string, denied bool) {
		plan.Reset()
		plan.Add(rs, &request.Attributes{PathText: path})
		for i := range plan.Checks() {
			plan.Results()[i] = counter.Result{Denied: denied, Wait: counter.Second}
		}
		plan.Decide()
		endpoints.Count(plan)
	}
	for i := range 1000 { // made-up paths
		ask(fmt.Sprintf("/api/v1/users/%d/orders", i), false)
		ask(fmt.Sprintf("/api/%d", i), false)
	}
	ask("/one", true)
	ask("/elsewhere", true)
	want := []string{"/api/* allowed shop api 1000", "/api/v1/users/*/orders allowed shop api 1000", "/one denied shop one 1"}
	if got := series(t, m.Endpoints); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { endpoints.Count(plan) }); n != 0 {
		t.Errorf("counting allocates %v times", n)
	}
}

// TestEndpointsAreBounded: a policy with more patterns than labels counts the remaining patterns
// together, and the path is compared with a bounded number of patterns.
func TestEndpointsAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("name: shop\nrules:\n")
	for rule := range 60 {
		fmt.Fprintf(&text, "  - {name: r%d, match: {path: [", rule)
		for pattern := range 20 {
			fmt.Fprintf(&text, "/r%d/p%02d, ", rule, pattern)
		}
		text.WriteString("]}, limit: 1/1m}\n")
	}
	d := document(t, text.String())
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	m := New()
	endpoints := m.EndpointsOf(d, rs)
	for rule := range 60 {
		for pattern := range 20 {
			plan := new(core.Plan)
			plan.Add(rs, &request.Attributes{PathText: fmt.Sprintf("/r%d/p%02d", rule, pattern)})
			plan.Decide()
			endpoints.Count(plan)
		}
	}
	all := series(t, m.Endpoints)
	if len(all) > endpointLabelsMax+60 || len(all) < 60 {
		t.Errorf("%d series", len(all))
	}
	for _, want := range []string{"/r0/p00 allowed shop r0 1", "other allowed shop r0 4", "other allowed shop r59 20"} {
		if !slices.Contains(all, want) {
			t.Errorf("%q is not among %q", want, all)
		}
	}
}
