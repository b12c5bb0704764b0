// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strconv"
	"testing"
)

// TestLeavingAHeaderOutWinsNothing: a client that leaves out the header it would be counted by, or sends it empty, gets
// no more than one limit for all such requests together, and a group that it drops out of has no more generous winner.
func TestLeavingAHeaderOutWinsNothing(t *testing.T) {
	const limit, tries = 5, 40
	user := []Identify{{Kind: IdentifyHeader, Name: "X-User", Unverified: true}, {Kind: IdentifyIP}}
	header := []Dimension{{Kind: PerHeader, Name: "X-User"}}
	rule := Rule{Name: "r", Limits: limits(t, "5/1m")}
	for name, c := range map[string]struct {
		identify []Identify
		per      []Dimension
		missing  Missing
		most     int64
	}{
		"identify":      {user, nil, MissingClient, limit},
		"per, client":   {nil, header, MissingClient, limit},
		"per, share":    {nil, header, MissingShare, limit},
		"per, deny":     {nil, header, MissingDeny, 0},
		"both":          {user, append(header, Dimension{}), MissingClient, limit},
		"both and deny": {user, append(header, Dimension{}), MissingDeny, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := rule
			r.Per, r.Missing, r.Unverified = c.per, c.missing, c.per != nil
			rs := mustCompile(t, Policy{Name: "n", Identify: c.identify, Rules: []Rule{r}})
			store, admitted := newCounters(), int64(0)
			for i := range tries {
				without := &client{peer: netip.MustParseAddr("192.0.2.1"), path: "/" + strconv.Itoa(i)}
				if i%2 == 1 {
					without.header = map[string]string{"X-User": ""}
				}
				if _, d := store.ask(t, without, rs); !d.Refused() {
					admitted++
				}
			}
			if admitted != c.most {
				t.Errorf("admitted %d of %d without the header, want %d", admitted, tries, c.most)
			}
			// Who sends it is another client, and has no less for what others did.
			_, d := store.ask(t, &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "u"}}, rs)
			if d.Refused() {
				t.Errorf("a client with the header is refused: %+v", d)
			}
		})
	}
}
