// SPDX-License-Identifier: Apache-2.0

package enforce_test

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// TestDeniedClientsAreCounted: each denied request counts for its client, under the policy that
// denies it, and an admitted request counts for no client. Counting allocates nothing.
func TestDeniedClientsAreCounted(t *testing.T) {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	document, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte("name: shop\nidentify: [{header: {name: X-User, unverified: true}}, ip: {}]\n"+
		"rules: [{name: api, limit: 2/31d fixed_window}]\nblock: [{ip: 192.0.2.66}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	ruleset, err := document.Compile()
	if err != nil {
		t.Fatal(err)
	}
	enforcer, sketch := enforce.New(store, metrics.New()), topk.New(topk.Options{})
	enforcer.CountDenials(sketch)
	ask := func(name string) *core.Plan {
		client, err := operator.Parse(operator.Words{Client: name})
		if err != nil {
			t.Fatal(err)
		}
		plan := new(core.Plan)
		plan.Add(ruleset, client)
		if len(plan.Checks()) == 0 {
			plan.Decide()
		} else if _, err := enforcer.Ask(plan, plan.Checks()); err != nil {
			t.Fatal(err)
		}
		return plan
	}
	for range 2 {
		enforcer.Count(ask("ip:192.0.2.1"), new(core.Decision))
	}
	if top := sketch.Top(10); len(top) != 0 {
		t.Errorf("nobody was denied, and %+v is listed", top)
	}
	enforcer.Count(ask("ip:192.0.2.66"), new(core.Decision))
	denied := ask("ip:192.0.2.1")
	if n := testing.AllocsPerRun(1000, func() { enforcer.Count(denied, new(core.Decision)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	top := sketch.Top(10)
	if len(top) != 2 || top[0] != (topk.Entry{Policy: "shop", Client: "ip:192.0.2.1", Denied: 1001}) ||
		top[1] != (topk.Entry{Policy: "shop", Client: "ip:192.0.2.66", Denied: 1}) {
		t.Errorf("the clients are %+v", top)
	}
	if strings.Contains(top[0].Client, "\x00") {
		t.Error("the name is longer than the client's")
	}
}
