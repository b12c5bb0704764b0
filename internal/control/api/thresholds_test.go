// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/control/ledger"
)

const thresholdBody = `{"policy":"shop","rule":"api","units":1000,"percents":[100,80,80],"url":"https://billing.example.com/hook?token=s3cret",` + reason + `}`

// walkThresholds calls the operations of thresholds.
func (s *served) walkThresholds() {
	s.t.Helper()
	for _, name := range []string{"a", "b"} {
		s.checkAnswer(s.ask(ledger.Admin, "PUT", "/v1/thresholds/"+name, thresholdBody), 200, `"percents":[80,100]`)
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/thresholds?limit=1", ""), 200, `"next":"a"`, `"url":"https://billing.example.com"`)
	s.checkAnswer(s.ask(ledger.Admin, "GET", "/v1/thresholds?limit=1", ""), 200, `"url":"https://billing.example.com/hook?token=s3cret"`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/thresholds?limit=1&after=a", ""), 200, `"threshold":"b"`)
	if _, err := s.ledger.Pool.Exec(s.t.Context(), "INSERT INTO notices (notice, threshold, client, month, percent, policy, rule, used, units, url, made_at) "+
		"SELECT 'msg_' || n, 'a', 'user:' || n, '2026-11-01', 80, 'shop', 'api', 800.0, 1000, 'https://x', now() FROM generate_series(1, 2) n"); err != nil {
		s.t.Fatal(err)
	}
	first := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/thresholds/a/notices?limit=1", ""), 200, `"client":"user:2"`, `"month":"2026-11"`)
	_, next, _ := strings.Cut(first.body, `"next":"`)
	next, _, _ = strings.Cut(next, `"`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/thresholds/a/notices?after="+next, ""), 200, `"client":"user:1"`)
	s.checkAnswer(s.ask(ledger.Admin, "DELETE", "/v1/thresholds/b?reason=x", ""), 204)
	s.checkAnswer(s.ask(ledger.Admin, "DELETE", "/v1/thresholds/b?reason=x", ""), 404)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/thresholds", ""), 200, `"thresholds":[{"threshold":"a"`)
	if changes := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/changes?limit=1000", ""), 200, `https://billing.example.com`); strings.Contains(changes.body, "s3cret") {
		s.t.Errorf("the history shows the path of a receiver: %s", changes.body)
	}
}

// TestThresholdsThatAreNone tests that an invalid threshold is rejected with its place, that
// nothing is written, and that a process without webhooks accepts no threshold.
func TestThresholdsThatAreNone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for place, change := range map[string][2]string{
		"body.policy":   {`"shop"`, `""`},
		"body.rule":     {`"api"`, `"a\u009bb"`},
		"path.client":   {`"units"`, `"client":"bob","units"`},
		"body.units":    {`1000`, `0`},
		"body.percents": {`[100,80,80]`, `[0,80]`},
		"body.url":      {`https://billing.example.com/hook?token=s3cret`, `ftp://billing.example.com`},
	} {
		s.checkAnswer(s.ask(ledger.Admin, "PUT", "/v1/thresholds/a", strings.Replace(thresholdBody, change[0], change[1], 1)), 422, place)
	}
	for _, url := range []string{"https://", "https://user:pass@h/", "billing", "https://h/#x", "https://[fe80::1%25eth0]/", "https://h/" + strings.Repeat("x", 1000)} {
		s.checkAnswer(s.ask(ledger.Admin, "PUT", "/v1/thresholds/a", strings.Replace(thresholdBody, "https://billing.example.com/hook?token=s3cret", url, 1)), 422, "body.url")
	}
	s.checkAnswer(s.ask(ledger.Admin, "PUT", "/v1/thresholds/a%20b", thresholdBody), 422, "body.threshold")
	s.checkAnswer(s.ask(ledger.Admin, "PUT", "/v1/thresholds/a", strings.Replace(thresholdBody, `"units"`, `"revision":7,"units"`, 1)), 422, "body.revision")
	s.api.o.Notifies = false
	s.checkAnswer(s.ask(ledger.Admin, "PUT", "/v1/thresholds/a", thresholdBody), 422, "--webhook-secret")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/thresholds", ""), 200, `"thresholds":[]`)
}
