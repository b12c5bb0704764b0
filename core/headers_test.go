// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// told returns the fields that the client at 192.0.2.1 is told at its n-th request for /, and the plan behind them.
func told(t *testing.T, store *counters, n int, policies ...*Ruleset) (Fields, *Plan, Decision) {
	t.Helper()
	for range n - 1 {
		store.ask(t, get("192.0.2.1", "/"), policies...)
	}
	plan, d := store.ask(t, get("192.0.2.1", "/"), policies...)
	return plan.Headers(&d), plan, d
}

func oneRule(t *testing.T, texts ...string) *Ruleset {
	t.Helper()
	return mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "default", Limits: limits(t, texts...)}}})
}

// TestHeadersOfEachAlgorithm is the table of docs/policy.md: 0.3 s after the second 1700000000, which is 20 s into its
// minute, so that every instant has to be rounded up.
func TestHeadersOfEachAlgorithm(t *testing.T) {
	for _, c := range []struct {
		limit string
		n     int
		want  Fields
	}{
		{"3/1m fw", 1, Fields{"3", "2", "1700000040", `"default";r=2;t=40`, `"default";q=3;w=60`, "", "", ""}},
		{"3/1m fw", 4, Fields{"3", "0", "1700000040", `"default";r=0;t=40`, `"default";q=3;w=60`, "40", "", ""}},
		{"3/1m", 1, Fields{"3", "2", "1700000040", `"default";r=2;t=40`, `"default";q=3;w=60`, "", "", ""}},
		// As the next window begins, the three units of this one begin to weigh less than three.
		{"3/1m", 4, Fields{"3", "0", "1700000040", `"default";r=0;t=40`, `"default";q=3;w=60`, "40", "", ""}},
		{"3/1m sl", 2, Fields{"3", "1", "1700000061", `"default";r=1;t=60`, `"default";q=3;w=60`, "", "", ""}},
		{"3/1m sl", 4, Fields{"3", "0", "1700000061", `"default";r=0;t=60`, `"default";q=3;w=60`, "60", "", ""}},
		{"6/1m burst 9", 2, Fields{"9", "7", "1700000021", `"default";r=7;t=10`, `"default";q=6;w=60;penstock-burst=9`, "", "", ""}},
		{"6/1m burst 1", 2, Fields{"1", "0", "1700000011", `"default";r=0;t=10`, `"default";q=6;w=60;penstock-burst=1`, "10", "", ""}},
		{"6/1m tb", 1, Fields{"6", "5", "1700000011", `"default";r=5;t=10`, `"default";q=6;w=60;penstock-burst=6`, "", "", ""}},
		// Sub-second windows: w cannot say them, and everything is at least a second.
		{"3/500ms fw", 4, Fields{"3", "0", "1700000002", `"default";r=0;t=1`, `"default";q=3`, "1", "", ""}},
		{"3/1500ms fw", 1, Fields{"3", "2", "1700000002", `"default";r=2;t=1`, `"default";q=3`, "", "", ""}},
	} {
		store := newCounters()
		store.now = 1_700_000_000*Second + 300*Millisecond
		got, _, _ := told(t, store, c.n, oneRule(t, c.limit))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s, request %d (-want +got):\n%s", c.limit, c.n, diff)
		}
	}
}

// TestHeadersOfAFullBucket: there is no time to tell until more is there.
func TestHeadersOfAFullBucket(t *testing.T) {
	var plan Plan
	plan.Add(oneRule(t, "6/1m burst 9"), get("192.0.2.1", "/"))
	plan.Results()[0] = Result{At: 1_700_000_000 * Second, Remaining: 9}
	d := plan.Decide()
	want := Fields{"9", "9", "1700000001", `"default";r=9`, `"default";q=6;w=60;penstock-burst=9`, "", "", ""}
	if diff := cmp.Diff(want, plan.Headers(&d)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestHeadersOfSeveralLimits: all are listed, and the one with the fewest requests left is told of; if refused, the one
// with the longest wait.
func TestHeadersOfSeveralLimits(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "api", Limits: limits(t, "4/1m fw", "100/1d fw", "90/1d sw", "8/90s fw")},
		{Name: "dear", Limits: limits(t, "25/1m fw"), Cost: []Cost{{N: 10}}},
	}})
	const policies = `"api-1m";q=4;w=60, "api-1d-fw";q=100;w=86400, "api-1d-sw";q=90;w=86400, "api-90s";q=8;w=90, ` +
		`"dear";q=25;w=60`
	store := newCounters()
	got, _, d := told(t, store, 1, rs)
	want := Fields{"25", "15", "1700000040", `"dear";r=15;t=40`, policies, "", "10", ""} // one more request, of api-1m three
	if diff := cmp.Diff(want, got); diff != "" || d.Rule != "dear" || d.Policy != "dear" || d.Used != 10 {
		t.Errorf("%+v; -want +got:\n%s", d, diff)
	}
	got, _, d = told(t, store, 2, rs)
	if got.RateLimit != `"dear";r=5;t=40` || got.RetryAfter != "40" || got.Policy != policies || !d.Refused() {
		t.Errorf("refused: %+v", got)
	}
	// Equally few are left of both: the one that resets later is told of.
	got, _, d = told(t, newCounters(), 1, oneRule(t, "4/1m fw", "4/1d fw"))
	if got.RateLimit[:14] != `"default-1d";r` || d.Policy != "default-1d" || d.Limit.Window() != Day {
		t.Errorf("equally few: %+v", got)
	}
}

// TestHeadersHideAndExpose: limits for everybody and of log_only rules are not shown unless asked for; a refusal by one
// says when to come back and nothing else.
func TestHeadersHideAndExpose(t *testing.T) {
	policy := func(expose bool) *Ruleset {
		return mustCompile(t, Policy{Name: "n", Rules: []Rule{
			{Name: "shadow", Limits: limits(t, "1/1m fw"), Action: ActionLogOnly, Expose: expose},
			{Name: "all", Limits: limits(t, "2/1m fw"), PerNone: true, Expose: expose},
			{Name: "own", Limits: limits(t, "9/1m fw")},
		}})
	}
	store := newCounters()
	got, _, d := told(t, store, 2, policy(false))
	want := Fields{"9", "7", "1700000040", `"own";r=7;t=40`, `"own";q=9;w=60`, "", "", ""}
	if diff := cmp.Diff(want, got); diff != "" || d.Rule != "own" {
		t.Errorf("hidden, allowed (-want +got):\n%s", diff)
	}
	got, plan, d := told(t, store, 1, policy(false))
	if diff := cmp.Diff(Fields{RetryAfter: "40"}, got); diff != "" || d.Rule != "all" || d.Policy != "" || d.Limit != nil {
		t.Errorf("hidden, refused: %+v (-want +got):\n%s", d, diff)
	}
	if _, named := problem(t, plan, &d)["violated-policies"]; named {
		t.Errorf("the body of a refusal by a hidden limit names policies")
	}
	got, plan, d = told(t, newCounters(), 3, policy(true))
	want = Fields{"2", "0", "1700000040", `"all";r=0;t=40`,
		`"shadow";q=1;w=60, "all";q=2;w=60, "own";q=9;w=60`, "40", "", ""}
	if diff := cmp.Diff(want, got); diff != "" || d.Policy != "all" {
		t.Errorf("exposed, refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{"all"}, problem(t, plan, &d)["violated-policies"]); diff != "" {
		t.Errorf("violated policies (-want +got):\n%s", diff)
	}
}

// TestHeaderFamilies: each policy has its own.
func TestHeaderFamilies(t *testing.T) {
	policy := func(name string, families HeaderFamilies, limit string) *Ruleset {
		return mustCompile(t, Policy{Name: name, Headers: families, Rules: []Rule{{Name: name, Limits: limits(t, limit)}}})
	}
	x, ietf := policy("x", HeadersX, "5/1m fw"), policy("ietf", HeadersIETF, "9/1m fw")
	none, few := policy("none", HeadersNone, "1/1m fw"), policy("few", HeadersIETF, "1/1m fw")
	for _, c := range []struct {
		what     string
		n        int
		policies []*Ruleset
		want     Fields
	}{
		{"x alone", 1, []*Ruleset{x}, Fields{Limit: "5", Remaining: "4", Reset: "1700000040"}},
		{"ietf alone", 1, []*Ruleset{ietf}, Fields{RateLimit: `"ietf";r=8;t=40`, Policy: `"ietf";q=9;w=60`}},
		{"none alone", 1, []*Ruleset{none}, Fields{}},
		{"none, refused", 2, []*Ruleset{none, x}, Fields{RetryAfter: "40"}},
		{"one each", 1, []*Ruleset{ietf, none, x}, Fields{"5", "4", "1700000040", `"ietf";r=8;t=40`, `"ietf";q=9;w=60`, "", "", ""}},
		{"refused by ietf", 2, []*Ruleset{x, few, ietf}, Fields{RateLimit: `"few";r=0;t=40`,
			Policy: `"few";q=1;w=60, "ietf";q=9;w=60`, RetryAfter: "40"}},
	} {
		got, _, _ := told(t, newCounters(), c.n, c.policies...)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}

// problem decodes the body of a refusal.
func problem(t *testing.T, p *Plan, d *Decision) map[string]any {
	t.Helper()
	body := p.AppendProblem([]byte("before"), d)
	var out map[string]any
	if err := json.Unmarshal(body[len("before"):], &out); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return out
}

func TestProblemExceeded(t *testing.T) {
	store := newCounters()
	rs := oneRule(t, "3/1m fw", "3/1d fw", "90/1h fw")
	_, plan, d := told(t, store, 4, rs)
	const want = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
		`"detail":"Too many requests: try again in 6400 seconds.","violated-policies":["default-1m","default-1d"],` +
		`"error":"Rate limit exceeded","retry_after":6400}`
	if got := string(plan.AppendProblem(nil, &d)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { plan.out = plan.AppendProblem(plan.out[:0], &d) }); n != 0 {
		t.Errorf("AppendProblem allocates %v times", n)
	}
}

// TestNeverPasses: a policy with such a cost does not compile, but a counter can be asked for more by what comes later.
func TestNeverPasses(t *testing.T) {
	var plan Plan
	plan.Add(oneRule(t, "3/1m fw", "9/1m sl"), get("192.0.2.1", "/"))
	plan.Checks()[0].Cost = 4
	store := newCounters()
	store.take(plan.Checks(), plan.Results())
	d := plan.Decide()
	if d.RetryAfter != Never || d.Status != 429 {
		t.Fatalf("%+v", d)
	}
	got := plan.Headers(&d)
	if got.RetryAfter != "" || got.RateLimit != `"default-1m-fw";r=3` || got.Reset != "1700000040" {
		t.Errorf("fields %+v", got)
	}
	body := problem(t, &plan, &d)
	if _, timed := body["retry_after"]; timed || body["detail"] != detailNeverPasses {
		t.Errorf("body %v", body)
	}
}

func TestProblemsWithoutALimit(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", OnError: OnErrorDeny, Rules: []Rule{
		{Name: "no", Action: ActionBlock, Match: Match{Path: []string{"/no"}}},
		{Name: "user", Limits: limits(t, "1/1m"), Per: []Dimension{{Kind: PerAttr, Name: "user"}}, Missing: MissingDeny,
			Match: Match{Path: []string{"/user"}}},
		{Name: "all", Limits: limits(t, "1/1m")},
	}})
	for _, c := range []struct{ path, kind, title string }{
		{"/no", "about:blank", "Forbidden"},
		{"/user", "about:blank", "Forbidden"},
		{"/", typeReduced, titleReduced},
	} {
		var plan Plan
		plan.Add(rs, get("192.0.2.1", c.path))
		d := plan.Degrade()
		body := problem(t, &plan, &d)
		if body["type"] != c.kind || body["title"] != c.title || body["status"] != float64(d.Status) || body["detail"] == "" {
			t.Errorf("%s: %v", c.path, body)
		}
		if _, named := body["violated-policies"]; named || plan.Headers(&d) != (Fields{}) {
			t.Errorf("%s names policies", c.path)
		}
	}
	var plan Plan
	d := plan.Decide()
	if body := plan.AppendProblem(nil, &d); len(body) != 0 || d.Outcome != OutcomeNone {
		t.Errorf("a request that goes on has the body %s", body)
	}
}
