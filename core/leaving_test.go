// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// TestLeavingAHeaderOutWinsNothing: a client gains nothing by omitting or emptying the header by
// which it would be counted. All such requests together have one limit, and a rule that drops out
// of its group does not make a more generous rule win.
func TestLeavingAHeaderOutWinsNothing(t *testing.T) {
	const limit, tries = 5, 40
	user := []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}, {Kind: policy.IdentifyIP}}
	header := []policy.Dimension{{Kind: policy.PerHeader, Name: "X-User"}}
	rule := policy.Rule{Name: "r", Limits: limittest.All(t, "5/1m")}
	for name, c := range map[string]struct {
		identify []policy.Identify
		per      []policy.Dimension
		missing  policy.Missing
		most     int64
	}{
		"identify":      {user, nil, policy.MissingClient, limit},
		"per, client":   {nil, header, policy.MissingClient, limit},
		"per, share":    {nil, header, policy.MissingShare, limit},
		"per, deny":     {nil, header, policy.MissingDeny, 0},
		"both":          {user, append(header, policy.Dimension{}), policy.MissingClient, limit},
		"both and deny": {user, append(header, policy.Dimension{}), policy.MissingDeny, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := rule
			r.Per, r.Missing, r.Unverified = c.per, c.missing, c.per != nil
			rs := mustCompile(t, policy.Policy{Name: "n", Identify: c.identify, Rules: []policy.Rule{r}})
			store, admitted := newCounters(), int64(0)
			for i := range tries {
				without := &client{peer: netip.MustParseAddr("192.0.2.1"), path: "/" + strconv.Itoa(i)}
				if i%2 == 1 {
					without.header = map[string]string{"X-User": ""}
				}
				if _, d := store.ask(t, without, rs); !d.Denied() {
					admitted++
				}
			}
			if admitted != c.most {
				t.Errorf("admitted %d of %d without the header, want %d", admitted, tries, c.most)
			}
			// A client that sends the header is counted separately, and has its full limit.
			_, d := store.ask(t, &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "u"}}, rs)
			if d.Denied() {
				t.Errorf("a client with the header is refused: %+v", d)
			}
		})
	}
}
