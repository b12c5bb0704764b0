// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/test/eventually"
)

// openWithCandidate opens a bridge with the policy shop and a candidate.
func openWithCandidate(t *testing.T, candidate string, change func(*Options)) *testBridge {
	t.Helper()
	file := filepath.Join(t.TempDir(), "candidate.yaml")
	if err := os.WriteFile(file, []byte(candidate), 0o600); err != nil {
		t.Fatal(err)
	}
	return open(t, shop, func(o *Options) {
		o.ShadowPolicyFile = file
		if change != nil {
			change(o)
		}
	})
}

// testBridge.awaitTrials waits until a number of trials have ended with the given decisions.
func (h *testBridge) awaitTrials(present, candidate string, want int) {
	h.t.Helper()
	series := fmt.Sprintf(`penstock_shadow_decisions_total{candidate=%q,policy="shop.shadow",present=%q}`, candidate, present)
	eventually.Until(h.t, 10*time.Second, fmt.Sprintf("%s is %d", series, want), func() bool { return h.counted(series) == want })
}

// TestACandidateChangesNoAnswer: the answers are those of the policy in force, and the metrics show
// the decisions of the candidate, for requests from a filter and in JSON.
func TestACandidateChangesNoAnswer(t *testing.T) {
	h := openWithCandidate(t, `rules:
  - { name: api, match: { path: /api/* }, limit: 1/1h fixed_window }
  - { name: more, match: { path: /other }, action: block }
`, nil)
	for i, denied := range []bool{false, false, true} {
		if a := h.ask(h.question("/api/x", "192.0.2.1"))[0]; a.Status != wire.StatusOK || a.Results[0].Denied != denied {
			t.Errorf("request %d: %+v", i, a)
		}
	}
	if a := h.ask(h.question("/other", "192.0.2.1"))[0]; a.Status != wire.StatusOK || len(a.Results) != 0 {
		t.Errorf("a path that only the candidate blocks: %+v", a)
	}
	if w := h.post([]byte(`{"path":"/other","ip":"192.0.2.1"}`), "application/json"); w.Code != 200 || !strings.Contains(w.Body.String(), `"none"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	h.awaitTrials("admitted", "admitted", 1)
	h.awaitTrials("admitted", "refused", 3)
	h.awaitTrials("refused", "refused", 1)
	if got := h.readUsed("/api/x", "192.0.2.1"); got != 2 {
		t.Errorf("%d units of the policy in force are used, want 2", got)
	}
}

// TestACandidateChargesByTheReportedResponse: a trial waits for the response that the filter
// reports. Values that the filter was not asked for are unknown.
func TestACandidateChargesByTheReportedResponse(t *testing.T) {
	h := openWithCandidate(t, `rules:
  - { name: ai, match: { path: /ai }, limit: 30/1h fixed_window, cost_after: { json: usage.total, estimate: 10, max: 50 } }
  - { name: other, match: { path: /api/* }, limit: 5/1h, count_if: { status: [401] } }
`, nil)
	first, second := h.admitted(), h.admitted()
	h.ask(settlementItem(first, "25"))
	h.awaitTrials("admitted", "admitted", 1)
	h.ask(settlementItem(second, "5")) // 25 units are used, and the estimate is 10
	h.awaitTrials("admitted", "refused", 1)
	h.ask(h.question("/api/x", "192.0.2.1")) // the filter will not report this response
	h.awaitTrials("admitted", "untried", 1)
}

// TestACandidateThatReadsMore: filters send only what the policy in force reads. If a candidate
// reads more, it cannot decide their requests, which count as untried. The log reports this once.
func TestACandidateThatReadsMore(t *testing.T) {
	var log eventually.Journal
	h := openWithCandidate(t, "rules: [{ name: api, match: { header: { X-Beta: \"1\" } }, limit: 1/1h }]\n", func(o *Options) { o.Logger = log.Logger() })
	h.ask(h.question("/api/x", "192.0.2.1"), h.question("/api/x", "192.0.2.1"))
	h.awaitTrials("admitted", "untried", 2)
	if n := strings.Count(log.String(), "header X-Beta"); n != 1 {
		t.Errorf("%d lines name the header, want 1:\n%s", n, log.String())
	}
	h.post([]byte(`{"path":"/api/x","ip":"192.0.2.2","headers":{"X-Beta":"1"}}`), "application/json")
	h.awaitTrials("admitted", "admitted", 1)
}

// TestALargeRequestIsNotKept tests that the memory of trials is bounded.
func TestALargeRequestIsNotKept(t *testing.T) {
	ask := wire.Ask{Path: "/", Headers: []wire.Value{{Text: strings.Repeat("x", triedBytesMax-1), Given: true}}}
	if keep(nil, &wire.View{Ask: &ask}) == nil {
		t.Error("a request at the bound is not kept")
	}
	ask.Path = "/x"
	if keep(nil, &wire.View{Ask: &ask}) != nil {
		t.Error("a request beyond the bound is kept")
	}
}

// TestAWrongCandidateIsRejected: a wrong candidate is rejected at the start. An edit that makes the
// candidate wrong is rejected too, and the previous candidate stays.
func TestAWrongCandidateIsRejected(t *testing.T) {
	h := openWithCandidate(t, "rules: [{ name: api, limit: 1/1h }]\n", nil)
	file := h.b.options.ShadowPolicyFile
	if err := os.WriteFile(file, []byte("rules: [{ name: api, limit: 1/hour }]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.b.Reload(); err == nil || !strings.Contains(err.Error(), "1/hour") {
		t.Errorf("the edit: %v", err)
	}
	o := h.b.options
	o.Registry, o.Metrics = nil, nil
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "1/hour") {
		t.Errorf("the start: %v", err)
	}
	h.ask(h.question("/api/x", "192.0.2.1"))
	h.awaitTrials("admitted", "admitted", 1)
}
