// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/request"
)

// places returns a function that finds the place of a request under a policy.
func places(t *testing.T, text string) func(a *request.Attributes, salt byte) int32 {
	t.Helper()
	d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	plan := new(core.Plan)
	return func(a *request.Attributes, salt byte) int32 {
		plan.Reset()
		place := plan.Place(rs, a, &[16]byte{salt})
		if plan.Add(rs, a); len(plan.Checks()) != 1 {
			t.Errorf("%d checks after Place, want 1", len(plan.Checks()))
		}
		return place
	}
}

func newAttributes(address, user, key string) *request.Attributes {
	a := &request.Attributes{PathText: "/", Headers: map[string]string{"X-Key": key, "X-User": user}}
	if address != "" {
		a.PeerAddr = netip.MustParseAddr(address)
	}
	return a
}

// TestAClientHasOnePlace tests which requests have the same place, and that places never change:
// processes of different releases must agree.
func TestAClientHasOnePlace(t *testing.T) {
	place := places(t, "name: shop\nidentify: [{header: {name: x-key, unverified: true}}]\nuser: [{header: {name: x-user, unverified: true}}]\nrules: [{name: api, limit: 3/1m, per: []}]")
	for _, c := range []struct {
		address, user, key string
		want               int32
	}{
		{"192.0.2.1", "ann", "k1", 6037}, {"192.0.2.2", "ann", "k2", 6037}, {"", "ann", "", 6037},
		{"192.0.2.1", "", "k1", 5474}, {"192.0.2.2", "", "k1", 5474},
		{"192.0.2.1", "", "", 1034}, {"2001:db8::1", "", "", 5128}, {"2001:db8::2", "", "", 5128},
		{"", "", "", core.PlacesAll - 1},
	} {
		if got := place(newAttributes(c.address, c.user, c.key), 1); got != c.want {
			t.Errorf("the place of %+v is %d, want %d", c, got, c.want)
		}
	}
}

// TestPlacesAreSpread tests that a share of the places has about the same share of the clients, and
// that another salt selects other clients.
func TestPlacesAreSpread(t *testing.T) {
	place := places(t, "name: shop\nidentify: [{header: {name: x-key, unverified: true}}]\nrules: [{name: api, limit: 3/1m, per: []}]")
	const clients, share = 4000, 1000
	first, both := 0, 0
	for i := range clients {
		a := newAttributes("", "", fmt.Sprint("client-", i))
		if place(a, 1) < share {
			first++
			if place(a, 2) < share {
				both++
			}
		}
	}
	if first < 300 || first > 500 || both > 100 {
		t.Errorf("of %d clients, %d are in a tenth, and %d in the tenths of two salts", clients, first, both)
	}
}

// TestPlaceAllocatesNothing: Place is called for each request, so it must not allocate.
func TestPlaceAllocatesNothing(t *testing.T) {
	limit, err := counter.ParseLimit("3/1m")
	if err != nil {
		t.Fatal(err)
	}
	rs, err := core.Compile(policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "api", PerNone: true, Limits: []counter.Limit{limit}}}})
	if err != nil {
		t.Fatal(err)
	}
	plan, salt, a := new(core.Plan), new([16]byte), newAttributes("2001:db8::1", "", "")
	if n := testing.AllocsPerRun(100, func() { plan.Reset(); plan.Place(rs, a, salt); plan.Add(rs, a) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
