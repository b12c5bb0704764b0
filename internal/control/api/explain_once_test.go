// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
)

// TestANamedClientCompilesItsPolicyOnce tests that a policy of 1,000 rules is compiled only once
// for an explanation of a named client. That explanation must allocate about as much as the
// explanation of a request with a header.
func TestANamedClientCompilesItsPolicyOnce(t *testing.T) { // not in parallel, because it counts allocations
	s, _, _ := serveWithCounters(t)
	rules := make([]string, 1000)
	for i := range rules {
		rules[i] = fmt.Sprintf("{name: r%d, match: {path: /service-%d/*}, limit: %d/1h}", i, i, i+1)
	}
	text := "identify: [{header: {name: X-User, unverified: true}}]\\nrules: [" + strings.Join(rules, ", ") + "]\\n"
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/policies/many", `{"format":"yaml","text":"`+text+`",`+reason+`}`, "If-None-Match", "*"), 200)
	allocations := func(fields string) float64 {
		return testing.AllocsPerRun(3, func() {
			s.checkAnswer(s.ask(ledger.Viewer, "POST", "/v1/policies/many/explanation", `{"path":"/service-7/a",`+fields+`}`), 200, `"limit":"8/1h"`)
		})
	}
	other, named := allocations(`"headers":{"X-User":["ann"]}`), allocations(`"client":"header.x-user:ann"`)
	t.Logf("%.0f allocations with a header, %.0f for a named client", other, named)
	if named > 1.1*other {
		t.Errorf("a named client takes %.0f allocations, and a header %.0f", named, other)
	}
}
