// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestResponseOfARule: what the rule that refuses says, and only where it refuses.
func TestBodyContentType(t *testing.T) {
	for body, want := range map[string]string{"": "", "later": contentText, "{later": contentText, "[later": contentText,
		"7": contentText, "{}": contentJSON, `[{"a":1}]`: contentJSON} {
		if got := BodyContentType(body); got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}

func TestResponseOfARule(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "text", Match: Match{Path: []string{"/text"}}, Limits: limits(t, "1/1m fw"),
			Response: &Response{Message: "Our \"free\" plan\nallows one: 50%.", Headers: []Field{{"x-plans", "https://example.com"}}}},
		{Name: "body", Match: Match{Path: []string{"/body"}}, Limits: limits(t, "1/1m fw"),
			Response: &Response{Status: 503, Body: `{"code":7}`}},
		{Name: "page", Match: Match{Path: []string{"/page"}}, Limits: limits(t, "1/1m fw"),
			Response: &Response{Body: "<p>later", ContentType: "text/html"}},
		{Name: "plain", Match: Match{Path: []string{"/plain"}}, Limits: limits(t, "1/1m fw"),
			Response: &Response{Body: "{later", ContentType: BodyContentType("{later")}},
		{Name: "no", Match: Match{Path: []string{"/no"}}, Action: ActionBlock, Response: &Response{Status: 404, Message: "Gone."}},
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
		if d.Status != c.status || d.ContentType() != c.kind || !d.Refused() {
			t.Errorf("%s: %+v, %s", c.path, d, d.ContentType())
		}
		if got := string(plan.AppendProblem(nil, &d)); got != c.body {
			t.Errorf("%s:\n%s\nwant\n%s", c.path, got, c.body)
		}
		if code, _ := GRPCStatus(&d); code != c.code {
			t.Errorf("%s: gRPC %d, want %d", c.path, code, c.code)
		}
		if c.path == "/text" {
			if d.Detail() != "Our \"free\" plan\nallows one: 50%." {
				t.Errorf("the detail is %q", d.Detail())
			}
			if _, message := GRPCStatus(&d); message != `Our "free" plan%0Aallows one: 50%25.` {
				t.Errorf("gRPC says %q", message)
			}
			if diff := cmp.Diff([]Field{{"X-Plans", "https://example.com"}}, d.Response.Headers); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		}
	}
	var plan Plan
	plan.Add(rs, get("192.0.2.1", "/body"))
	if d := plan.Degrade(); d.Response != nil {
		t.Errorf("degraded: %+v", d)
	}
}

// TestRetryAfterOfARule: the greater of the true wait and what the rule says; Never stays.
func TestRetryAfterOfARule(t *testing.T) {
	for _, c := range []struct {
		rules []Rule
		want  Micros
	}{
		{[]Rule{{Limits: limits(t, "1/1m fw")}}, 39_700 * Millisecond},
		{[]Rule{{Limits: limits(t, "1/1m fw"), RetryAfter: 10 * Second}}, 39_700 * Millisecond},
		{[]Rule{{Limits: limits(t, "1/1m fw"), RetryAfter: 2 * Minute}}, 2 * Minute},
		{[]Rule{{Limits: limits(t, "1/1m fw")}, {Limits: limits(t, "1/1s fw"), RetryAfter: 5 * Minute}}, 5 * Minute},
		{[]Rule{{Limits: limits(t, "1/1m fw")}, {Limits: limits(t, "9/1s fw"), RetryAfter: 5 * Minute}}, 39_700 * Millisecond},
	} {
		for i := range c.rules {
			c.rules[i].Name = fmt.Sprintf("r%d", i)
		}
		rs, store := mustCompile(t, Policy{Name: "n", Rules: c.rules}), newCounters()
		store.ask(t, get("192.0.2.1", "/"), rs)
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		if d.RetryAfter != c.want || plan.Headers(&d).RetryAfter != fmt.Sprint(ceilSeconds(c.want)) {
			t.Errorf("%+v: %s, want %s", c.rules, d.RetryAfter, c.want)
		}
		plan.Checks()[0].Cost = 1e9
		store.take(plan.Checks(), plan.Results())
		if d = plan.Decide(); d.RetryAfter != Never {
			t.Errorf("%+v: %d for a cost that never passes", c.rules, d.RetryAfter)
		}
	}
}

// TestRetryJitter spreads clients evenly over all of it, never below the wait, and is the same for the same request.
func TestRetryJitter(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "1/1m fw"), RetryJitter: 10 * Second}}})
	const clients, wait = 2000, 39_700 * Millisecond
	var tenths [10]int
	for i := range clients {
		store := newCounters()
		a := get(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "/")
		store.ask(t, a, rs)
		plan, d := store.ask(t, a, rs)
		if again := plan.Decide(); again.RetryAfter != d.RetryAfter {
			t.Fatalf("%d, and then %d", d.RetryAfter, again.RetryAfter)
		}
		if d.RetryAfter < wait || d.RetryAfter > wait+10*Second {
			t.Fatalf("told to wait %s", d.RetryAfter)
		}
		tenths[min(9, (d.RetryAfter-wait)/Second)]++
	}
	for i, n := range tenths {
		if n < clients/10*7/10 || n > clients/10*13/10 {
			t.Errorf("%d of %d clients in second %d: %v", n, clients, i, tenths)
		}
	}
	var spread [10]int
	for at := range Micros(clients) {
		spread[min(9, jitter([]byte("one key"), noon+at*997, 10*Second)/Second)]++
	}
	for i, n := range spread {
		if n < clients/10*7/10 || n > clients/10*13/10 {
			t.Errorf("%d of %d instants in second %d: %v", n, clients, i, spread)
		}
	}
}

// TestUnauthorized: each state has its words, and the answer its challenge.
func TestUnauthorized(t *testing.T) {
	seen := map[string]bool{}
	for state := range CredentialState(CredentialStateCount) {
		d := Decision{Outcome: OutcomeUnauthorized, Status: 401, Credential: state}
		var plan Plan
		body, fields := problem(t, &plan, &d), plan.Headers(&d)
		detail := fmt.Sprint(body["detail"])
		if body["title"] != "Unauthorized" || body["status"] != 401.0 || detail == "" {
			t.Errorf("%s: %v", state, body)
		}
		if fields != (Fields{Authenticate: `Bearer error="invalid_token"`}) {
			t.Errorf("%s: %+v", state, fields)
		}
		if code, message := GRPCStatus(&d); code != 16 || message != detail {
			t.Errorf("%s: gRPC %d %q", state, code, message)
		}
		seen[detail] = true
	}
	if len(seen) < CredentialStateCount-1 { // expired and lapsed are the same to a client
		t.Errorf("%d sentences for %d states", len(seen), CredentialStateCount)
	}
}

func TestGRPCStatus(t *testing.T) {
	for outcome, want := range map[Outcome]int{OutcomeNone: 0, OutcomeAllowed: 0, OutcomeExempt: 0, OutcomeDegradedAllowed: 0,
		OutcomeDenied: 8, OutcomePenalized: 8, OutcomeUnauthorized: 16, OutcomeBlocked: 7, OutcomeMissing: 7,
		OutcomeDegradedDenied: 14} {
		d := Decision{Outcome: outcome, RetryAfter: 90 * Second}
		if code, message := GRPCStatus(&d); code != want || (message == "") != (want == 0) || d.Detail() != message {
			t.Errorf("%s: %d %q, want %d", outcome, code, message, want)
		}
	}
}

// TestNoIdentifierInFields: nothing that a client says of itself reaches a header field or a body.
func TestNoIdentifierInFields(t *testing.T) {
	const evil = "evil\r\nX-Injected: yes\"}"
	rs := mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyAttr, Name: "user"}}, Penalty: strict(),
		Rules: []Rule{{Name: "r", Limits: limits(t, "1/1m fw"), Cost: []Cost{{N: 1}}, Response: &Response{Message: "No."}}}})
	store := newCounters()
	for range 3 {
		plan, d := store.ask(t, &client{attr: map[string]string{"user": evil}}, rs)
		_, message := GRPCStatus(&d)
		if all := fmt.Sprintf("%+v%s%s", plan.Headers(&d), plan.AppendProblem(nil, &d), message); strings.Contains(all, "evil") {
			t.Errorf("%s", all)
		}
		store.now += Minute
		store.ask(t, &client{attr: map[string]string{"user": evil}}, rs)
	}
}

// FuzzValidJSON compares with encoding/json, which also takes what is not UTF-8.
func FuzzValidJSON(f *testing.F) {
	for _, text := range []string{`{"a":[1,-0.5e+7,true,false,null,"\u00e9\n"]}`, ` [ ] `, `{}`, `01`, `1.`, `"`, `[1,]`, `{"a" 1}`,
		`{"a":1,}`, `nul`, "\"\x01\"", `"\u12x4"`, `[[[]]`, `-`, `1 2`, ``, `"\ud800"`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		deep := strings.Count(text, "[")+strings.Count(text, "{") >= jsonDepthMax
		if !deep && strings.ToValidUTF8(text, "") == text && validJSON(text) != json.Valid([]byte(text)) {
			t.Errorf("%q: %v", text, validJSON(text))
		}
		var back string
		if err := json.Unmarshal(append(appendJSON([]byte{'"'}, text), '"'), &back); err != nil ||
			back != strings.ToValidUTF8(text, "\uFFFD") && !strings.Contains(back, "\uFFFD") {
			t.Errorf("%q came back as %q: %v", text, back, err)
		}
	})
}

func TestJSONDepth(t *testing.T) {
	deep := strings.Repeat("[", jsonDepthMax) + strings.Repeat("]", jsonDepthMax)
	if !validJSON(deep) || validJSON("["+deep+"]") {
		t.Errorf("%d levels: %v, one more: %v", jsonDepthMax, validJSON(deep), validJSON("["+deep+"]"))
	}
}
