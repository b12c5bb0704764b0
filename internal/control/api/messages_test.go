// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
)

// TestErrorsHaveTheWordsOfTheAPI tests that errors of bodies name fields and values as the document
// does, and say what to write.
func TestErrorsHaveTheWordsOfTheAPI(t *testing.T) {
	t.Parallel()
	s, _, _ := serveWithCounters(t)
	s.explained()
	const explanation = "/v1/policies/limits/explanation"
	for _, c := range []struct{ method, path, body, want string }{
		{"PUT", "/v1/tiers/gold", `{"price_cents":9223372036854775808,"currency":"USD",` + reason + `}`, "price_cents: number 9223372036854775808 is not a whole number that fits"},
		{"PUT", "/v1/tiers/gold", `{"price_cents":"5",` + reason + `}`, "expected integer"},
		{"POST", explanation, `{"path":"/","revision":1e400}`, "is not a number"},
		{"POST", explanation, `{"path":"/","region":"eu","counters":true}`, "this control plane has no regions: leave region out"},
		{"POST", explanation, `{"path":"/","method":"GET /x"}`, "no server accepts this method"},
		{"POST", explanation, `{"path":"/api/x","host":"a b"}`, "answer 400 to a request with such a host"},
	} {
		a := s.ask(ledger.Editor, c.method, c.path, c.body)
		if a.status != 422 && a.status != 400 || !strings.Contains(a.body, c.want) {
			t.Errorf("%s: status %d, want %q in %s", c.body, a.status, c.want, a.body)
		}
		for _, word := range []string{"Go ", "json:", "int64", "struct"} {
			if strings.Contains(a.body, word) {
				t.Errorf("%s: %q is in %s", c.body, word, a.body)
			}
		}
	}
}

// TestAFreeTierHasAPrice tests that a price of 0 is shown.
func TestAFreeTierHasAPrice(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/tiers/free", `{"price_cents":0,"currency":"USD",`+reason+`}`), 200)
	if a := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/tiers", ""), 200); !strings.Contains(a.body, `"price_cents":0,"currency":"USD"`) {
		t.Errorf("the tiers are %s", a.body)
	}
}
