// SPDX-License-Identifier: Apache-2.0

package response_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/request"
)

func TestResponseOfARule(t *testing.T) {
	rs := compile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "text", Match: policy.Match{Path: []string{"/text"}}, Limits: limittest.All(t, "1/1m fw"),
			Response: &policy.Response{Message: "Our \"free\" plan\nallows one: 50%.", Headers: []policy.Field{{Name: "x-plans", Value: "https://example.com"}}}},
		{Name: "body", Match: policy.Match{Path: []string{"/body"}}, Limits: limittest.All(t, "1/1m fw"),
			Response: &policy.Response{Status: 503, Body: `{"code":7}`}},
		{Name: "page", Match: policy.Match{Path: []string{"/page"}}, Limits: limittest.All(t, "1/1m fw"),
			Response: &policy.Response{Body: "<p>later", ContentType: "text/html"}},
		{Name: "plain", Match: policy.Match{Path: []string{"/plain"}}, Limits: limittest.All(t, "1/1m fw"),
			Response: &policy.Response{Body: "{later", ContentType: core.BodyContentType("{later")}},
		{Name: "no", Match: policy.Match{Path: []string{"/no"}}, Action: policy.ActionBlock, Response: &policy.Response{Status: 404, Message: "Gone."}},
	}})
	const problemHead = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":`
	for _, c := range []struct {
		path         string
		status, code int
		kind, body   string
	}{
		{"/text", 429, 8, "application/problem+json", problemHead + `"Our \"free\" plan\nallows one: 50%.",` +
			`"violated-policies":["text"],"error":"Rate limit exceeded","retry_after":40}`},
		{"/body", 503, 8, "application/json", `{"code":7}`},
		{"/page", 429, 8, "text/html", "<p>later"},
		{"/plain", 429, 8, "text/plain; charset=utf-8", "{later"},
		{"/no", 404, 7, "application/problem+json",
			`{"type":"about:blank","title":"Forbidden","status":404,"detail":"Gone.","error":"Forbidden"}`},
	} {
		store := newCounters()
		if _, d := store.ask(t, get("192.0.2.1", c.path), rs); d.Response != nil != (c.path == "/no") {
			t.Errorf("%s: a request that goes on has a response: %+v", c.path, d)
		}
		plan, d := store.ask(t, get("192.0.2.1", c.path), rs)
		if d.Status != c.status || response.ContentType(&d) != c.kind || !d.Denied() {
			t.Errorf("%s: %+v, %s", c.path, d, response.ContentType(&d))
		}
		if got := string(response.AppendProblem(nil, plan, &d)); got != c.body {
			t.Errorf("%s:\n%s\nwant\n%s", c.path, got, c.body)
		}
		if code, _ := response.GRPCStatus(&d); code != c.code {
			t.Errorf("%s: gRPC %d, want %d", c.path, code, c.code)
		}
		if c.path == "/text" {
			if response.Detail(&d) != "Our \"free\" plan\nallows one: 50%." {
				t.Errorf("the detail is %q", response.Detail(&d))
			}
			if _, message := response.GRPCStatus(&d); message != `Our "free" plan%0Aallows one: 50%25.` {
				t.Errorf("gRPC says %q", message)
			}
			if diff := cmp.Diff([]policy.Field{{Name: "X-Plans", Value: "https://example.com"}}, d.Response.Headers); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		}
	}
	plan := new(core.Plan)
	plan.Add(rs, get("192.0.2.1", "/body"))
	if d := plan.Degrade(); d.Response != nil {
		t.Errorf("degraded: %+v", d)
	}
}

// TestUnauthorized: each credential state has its own message, and the response has its challenge.
func TestUnauthorized(t *testing.T) {
	seen := map[string]bool{}
	for state := range policy.CredentialState(policy.CredentialStateCount) {
		d := core.Decision{Outcome: core.OutcomeUnauthorized, Status: 401, Credential: state}
		plan := new(core.Plan)
		body, fields := problem(t, plan, &d), headers(plan, &d)
		detail := fmt.Sprint(body["detail"])
		if body["title"] != "Unauthorized" || body["status"] != 401.0 || detail == "" {
			t.Errorf("%s: %v", state, body)
		}
		if fields != (response.Fields{}) || response.Challenge(&d) != `Bearer error="invalid_token"` {
			t.Errorf("%s: %+v", state, fields)
		}
		if code, message := response.GRPCStatus(&d); code != 16 || message != detail {
			t.Errorf("%s: gRPC %d %q", state, code, message)
		}
		seen[detail] = true
	}
	if len(seen) < policy.CredentialStateCount-1 { // a client cannot tell expired from lapsed
		t.Errorf("%d sentences for %d states", len(seen), policy.CredentialStateCount)
	}
}

func TestGRPCStatus(t *testing.T) {
	for outcome, want := range map[core.Outcome]int{core.OutcomeNone: 0, core.OutcomeAllowed: 0, core.OutcomeExempt: 0, core.OutcomeDegradedAllowed: 0,
		core.OutcomeDenied: 8, core.OutcomePenalized: 8, core.OutcomeUnauthorized: 16, core.OutcomeBlocked: 7, core.OutcomeMissing: 7,
		core.OutcomeDegradedDenied: 14} {
		d := core.Decision{Outcome: outcome, RetryAfter: 90 * counter.Second}
		if code, message := response.GRPCStatus(&d); code != want || (message == "") != (want == 0) || response.Detail(&d) != message {
			t.Errorf("%s: %d %q, want %d", outcome, code, message, want)
		}
	}
}

func TestStatusOfGRPC(t *testing.T) {
	for code, want := range map[string]int{"0": 200, "7": 403, "8": 429, "12": 501, "14": 503, "16": 401,
		"1": core.StatusUnread, "2": core.StatusUnread, "4": core.StatusUnread, "13": core.StatusUnread, // a client can cause these
		"17": core.StatusUnread, "": core.StatusUnread, "-1": core.StatusUnread, "16 ": core.StatusUnread, "0, 0": core.StatusUnread} {
		if got := response.StatusOfGRPC(code); got != want {
			t.Errorf("%q: %d, want %d", code, got, want)
		}
	}
}

func TestIsGRPC(t *testing.T) {
	for kind, want := range map[string]bool{"application/grpc": true, "application/grpc+proto": true, "application/GRPC-Web-Text": true,
		"\u00a0appl\u0130cation/Grpc\t;a=b": true, // Go's package mime reads application/grpc
		"application/grp":                   false, "text/html": false, "grpc": false, "": false, "/": false} {
		if got := response.IsGRPC(kind); got != want {
			t.Errorf("%q: %v", kind, got)
		}
	}
}

// TestNoIdentifierInFields: nothing that a client sends to identify itself appears in a header
// field or a body.
func TestNoIdentifierInFields(t *testing.T) {
	const evil = "evil\r\nX-Injected: yes\"}"
	rs := compile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyAttr, Name: "user"}}, Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 2, Multipliers: []int64{2, 4}, Max: 20 * counter.Minute},
		Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m fw"), Cost: []policy.Cost{{N: 1}}, Response: &policy.Response{Message: "No."}}}})
	store := newCounters()
	for range 3 {
		plan, d := store.ask(t, &request.Attributes{Attrs: map[string]string{"user": evil}}, rs)
		_, message := response.GRPCStatus(&d)
		if all := fmt.Sprintf("%+v%s%s", headers(plan, &d), response.AppendProblem(nil, plan, &d), message); strings.Contains(all, "evil") {
			t.Errorf("%s", all)
		}
		store.now += counter.Minute
		store.ask(t, &request.Attributes{Attrs: map[string]string{"user": evil}}, rs)
	}
}
