// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestShadowPolicyTellsWhatItWouldChangeAndChangesNothing tries a stricter limit for one path, and a laxer one for
// another, out.
func TestShadowPolicyTellsWhatItWouldChangeAndChangesNothing(t *testing.T) {
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
	if got := s.statuses(4, "/tight"); got != "200 200 200 429" {
		t.Errorf("the limit in force: %s, want 200 200 200 429", got)
	}
	if got := s.statuses(3, "/wide"); got != "200 429 429" {
		t.Errorf("the limit in force: %s, want 200 429 429", got)
	}
	for _, want := range []string{
		`penstock_shadow_decisions_total{candidate="refused",policy="trial.shadow",present="admitted"} 2`,
		`penstock_shadow_decisions_total{candidate="refused",policy="trial.shadow",present="refused"} 1`,
		`penstock_shadow_decisions_total{candidate="admitted",policy="trial.shadow",present="refused"} 2`,
		`penstock_shadow_decisions_total{candidate="admitted",policy="trial.shadow",present="admitted"} 2`,
		`penstock_requests_total{outcome="denied",policy="trial.shadow",rule="tight"} 3`,
	} {
		eventually(t, want, func() bool { return strings.Contains(s.metrics(), want) })
	}
}

func TestShadowPolicyMayStandAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "candidate.yaml")
	write(t, path, "rules: [{name: all, limit: 1/1h fixed_window}]\n")
	s := start(t, ":PORT {\n\tpenstock {\n\t\tname alone\n\t\tshadow policy "+path+"\n\t}\n\trespond \"ok\"\n}")
	if got := s.statuses(3, "/"); got != "200 200 200" {
		t.Errorf("%s: a candidate refuses nothing", got)
	}
	want := `penstock_shadow_decisions_total{candidate="refused",policy="alone.shadow",present="admitted"} 2`
	eventually(t, want, func() bool { return strings.Contains(s.metrics(), want) })
}

func TestShadowOfAnythingButAPolicyIsRefused(t *testing.T) {
	s := start(t, ":PORT {\n\trespond \"ok\"\n}")
	err := s.load(":PORT {\n\tpenstock 10/1m {\n\t\tshadow candidate.yaml\n\t}\n\trespond \"ok\"\n}")
	if err == nil || !strings.Contains(err.Error(), "write shadow policy candidate.yaml") {
		t.Errorf("shadow without policy: %v", err)
	}
}
