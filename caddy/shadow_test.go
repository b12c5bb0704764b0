// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestShadowPolicyReportsAndChangesNothing tries out a stricter limit for one path
// and a laxer limit for another.
func TestShadowPolicyReportsAndChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "candidate.yaml")
	write(t, path, "rules:\n  - {name: tight, match: {path: /tight}, limit: 1/1h fixed_window}\n"+
		"  - {name: wide, match: {path: /wide}, limit: 100/1h fixed_window}\n")
	s := start(t, `{
	metrics
}
:PORT {
	penstock {
		name trial
		shadow policy `+path+`
		rule tight {
			match path /tight
			limit 3/1h fixed_window
		}
		rule wide {
			match path /wide
			limit 1/1h fixed_window
		}
	}
	respond "ok"
}`)
	seen := s.counts()
	if got := s.statuses(4, "/tight"); got != "200 200 200 429" {
		t.Errorf("the limit in force: %s, want 200 200 200 429", got)
	}
	if got := s.statuses(3, "/wide"); got != "200 429 429" {
		t.Errorf("the limit in force: %s, want 200 429 429", got)
	}
	for series, by := range map[string]float64{
		`penstock_shadow_decisions_total{candidate="refused",policy="trial.shadow",present="admitted"}`:  2,
		`penstock_shadow_decisions_total{candidate="refused",policy="trial.shadow",present="refused"}`:   1,
		`penstock_shadow_decisions_total{candidate="admitted",policy="trial.shadow",present="refused"}`:  2,
		`penstock_shadow_decisions_total{candidate="admitted",policy="trial.shadow",present="admitted"}`: 2,
		`penstock_requests_total{outcome="denied",policy="trial.shadow",rule="tight"}`:                   3,
	} {
		seen.awaitGrown(t, series, by)
	}
}

// TestShadowPolicyChargesByTheResponse: a candidate that counts failed logins or tokens is tried
// out on responses, whether or not a policy in force applies to the request.
func TestShadowPolicyChargesByTheResponse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "candidate.yaml")
	write(t, path, `rules:
  - {name: logins, match: {path: /login/*}, limit: 3/1d fixed_window, count_if: {status: 401}}
  - {name: tokens, match: {path: /chat}, limit: 100/1d fixed_window, cost_after: {json: usage.total, estimate: 90}}
  - {name: units, match: {path: /units}, limit: 100/1d fixed_window, cost_after: {header: X-Units, estimate: 90}}
`)
	site := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/login/bad":
			w.WriteHeader(http.StatusUnauthorized)
		case "/chat":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"total":25}}`)
		case "/units":
			_, _ = io.WriteString(w, strings.Repeat("long ", 1000))
			w.Header().Set(http.TrailerPrefix+"X-Units", "25")
		}
	})
	for name, inForce := range map[string]string{"alone": "", "beside": "rule all 1000/1m"} {
		s := start(t, ":PORT {\n\tpenstock {\n\t\tname "+name+"-settles\n\t\tshadow policy "+path+"\n\t\t"+inForce+"\n\t}\n\treverse_proxy "+site+"\n}")
		seen := s.counts()
		told := func(rule, outcome string, n float64) {
			t.Helper()
			seen.awaitGrown(t, fmt.Sprintf(`penstock_requests_total{outcome="%s",policy="%s-settles.shadow",rule="%s"}`, outcome, name, rule), n)
		}
		s.statuses(10, "/login/good")
		told("logins", "allowed", 10)
		s.statuses(5, "/login/bad")
		told("logins", "denied", 2)
		s.statuses(5, "/chat")
		// after the cost of the first request, the estimate of a second exceeds the limit
		told("tokens", "allowed", 1)
		told("tokens", "denied", 4)
		s.statuses(5, "/units")
		told("units", "denied", 4)
	}
}

func TestShadowPolicyMayStandAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "candidate.yaml")
	write(t, path, "rules: [{name: all, limit: 1/1h fixed_window}]\n")
	s := start(t, ":PORT {\n\tpenstock {\n\t\tname alone\n\t\tshadow policy "+path+"\n\t}\n\trespond \"ok\"\n}")
	seen := s.counts()
	if got := s.statuses(3, "/"); got != "200 200 200" {
		t.Errorf("%s: a candidate denies nothing", got)
	}
	seen.awaitGrown(t, `penstock_shadow_decisions_total{candidate="refused",policy="alone.shadow",present="admitted"}`, 2)
}

func TestShadowOfAnythingButAPolicyIsRejected(t *testing.T) {
	s := start(t, ":PORT {\n\trespond \"ok\"\n}")
	err := s.load(":PORT {\n\tpenstock 10/1m {\n\t\tshadow candidate.yaml\n\t}\n\trespond \"ok\"\n}")
	if err == nil || !strings.Contains(err.Error(), "write shadow policy candidate.yaml") {
		t.Errorf("shadow without policy: %v", err)
	}
}
