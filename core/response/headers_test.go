// SPDX-License-Identifier: Apache-2.0

package response_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/limittest"
)

// fieldsOf returns the header fields of the n-th request for / from 192.0.2.1, with its plan and
// decision.
func fieldsOf(t *testing.T, store *mapStore, n int, policies ...*core.Ruleset) (response.Fields, *core.Plan, core.Decision) {
	t.Helper()
	for range n - 1 {
		store.ask(t, get("192.0.2.1", "/"), policies...)
	}
	plan, d := store.ask(t, get("192.0.2.1", "/"), policies...)
	return headers(plan, &d), plan, d
}

func oneRule(t *testing.T, texts ...string) *core.Ruleset {
	t.Helper()
	return compile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "default", Limits: limittest.All(t, texts...)}}})
}

// TestHeadersOfEachAlgorithm tests the table of docs/reference/http.md. The time is 1700000000.3,
// which is 20.3 s into a minute, so all instants must be rounded up.
func TestHeadersOfEachAlgorithm(t *testing.T) {
	for _, c := range []struct {
		limit string
		n     int
		want  response.Fields
	}{
		{"3/1m fw", 1, response.Fields{"3", "2", "1700000040", `"default";r=2;t=40`, `"default";q=3;w=60`, "", ""}},
		{"3/1m fw", 4, response.Fields{"3", "0", "1700000040", `"default";r=0;t=40`, `"default";q=3;w=60`, "40", ""}},
		{"3/1m", 1, response.Fields{"3", "2", "1700000040", `"default";r=2;t=40`, `"default";q=3;w=60`, "", ""}},
		// From the beginning of the next window, the three units of this one count for less than
		// three.
		{"3/1m", 4, response.Fields{"3", "0", "1700000040", `"default";r=0;t=40`, `"default";q=3;w=60`, "40", ""}},
		{"3/1m sl", 2, response.Fields{"3", "1", "1700000061", `"default";r=1;t=60`, `"default";q=3;w=60`, "", ""}},
		{"3/1m sl", 4, response.Fields{"3", "0", "1700000061", `"default";r=0;t=60`, `"default";q=3;w=60`, "60", ""}},
		{"6/1m burst 9", 2, response.Fields{"9", "7", "1700000021", `"default";r=7;t=10`, `"default";q=6;w=60;penstock-burst=9`, "", ""}},
		{"6/1m burst 1", 2, response.Fields{"1", "0", "1700000011", `"default";r=0;t=10`, `"default";q=6;w=60;penstock-burst=1`, "10", ""}},
		{"6/1m tb", 1, response.Fields{"6", "5", "1700000011", `"default";r=5;t=10`, `"default";q=6;w=60;penstock-burst=6`, "", ""}},
		// Sub-second windows: the parameter w cannot express them, and all times are at least one
		// second.
		{"3/500ms fw", 4, response.Fields{"3", "0", "1700000002", `"default";r=0;t=1`, `"default";q=3`, "1", ""}},
		{"3/1500ms fw", 1, response.Fields{"3", "2", "1700000002", `"default";r=2;t=1`, `"default";q=3`, "", ""}},
	} {
		store := newCounters()
		store.now = 1_700_000_000*counter.Second + 300*counter.Millisecond
		got, _, _ := fieldsOf(t, store, c.n, oneRule(t, c.limit))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s, request %d (-want +got):\n%s", c.limit, c.n, diff)
		}
	}
}

// TestHeadersOfAFullBucket: the fields of a full bucket have no time until more is available.
func TestHeadersOfAFullBucket(t *testing.T) {
	plan := new(core.Plan)
	plan.Add(oneRule(t, "6/1m burst 9"), get("192.0.2.1", "/"))
	plan.Results()[0] = counter.Result{At: 1_700_000_000 * counter.Second, Remaining: 9}
	d := plan.Decide()
	want := response.Fields{"9", "9", "1700000001", `"default";r=9`, `"default";q=6;w=60;penstock-burst=9`, "", ""}
	if diff := cmp.Diff(want, headers(plan, &d)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestHeadersOfSeveralLimits: RateLimit-Policy lists all limits. The other fields describe one
// limit. If the request is admitted, it is the limit with the fewest requests left. If the request
// is denied, it is the limit with the longest wait.
func TestHeadersOfSeveralLimits(t *testing.T) {
	rs := compile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "api", Limits: limittest.All(t, "4/1m fw", "100/1d fw", "90/1d sw", "8/90s fw")},
		{Name: "dear", Limits: limittest.All(t, "25/1m fw"), Cost: []policy.Cost{{N: 10}}},
	}})
	const policies = `"api-1m";q=4;w=60, "api-1d-fw";q=100;w=86400, "api-1d-sw";q=90;w=86400, "api-90s";q=8;w=90, ` +
		`"dear";q=25;w=60`
	store := newCounters()
	got, _, d := fieldsOf(t, store, 1, rs)
	// The reported limit has one request left; api-1m has three.
	want := response.Fields{"25", "15", "1700000040", `"dear";r=15;t=40`, policies, "", "10"}
	if diff := cmp.Diff(want, got); diff != "" || d.Rule != "dear" || d.Policy != "dear" || d.Used != 10 {
		t.Errorf("%+v; -want +got:\n%s", d, diff)
	}
	got, _, d = fieldsOf(t, store, 2, rs)
	if got[response.FieldRateLimit] != `"dear";r=5;t=40` || got[response.FieldRetryAfter] != "40" || got[response.FieldPolicy] != policies || !d.Denied() {
		t.Errorf("refused: %+v", got)
	}
	// If two limits have equally many requests left, the limit that resets later is reported.
	got, _, d = fieldsOf(t, newCounters(), 1, oneRule(t, "4/1m fw", "4/1d fw"))
	if got[response.FieldRateLimit][:14] != `"default-1d";r` || d.Policy != "default-1d" || d.Limit.Window() != counter.Day {
		t.Errorf("equally few: %+v", got)
	}
}

// TestHeadersHideAndExpose: shared limits and limits of log_only rules are hidden unless exposed. A
// denial by one of them reports only when to retry.
func TestHeadersHideAndExpose(t *testing.T) {
	policy := func(expose bool) *core.Ruleset {
		return compile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
			{Name: "shadow", Limits: limittest.All(t, "1/1m fw"), Action: policy.ActionLogOnly, Expose: expose},
			{Name: "all", Limits: limittest.All(t, "2/1m fw"), PerNone: true, Expose: expose},
			{Name: "own", Limits: limittest.All(t, "9/1m fw")},
		}})
	}
	store := newCounters()
	got, _, d := fieldsOf(t, store, 2, policy(false))
	want := response.Fields{"9", "7", "1700000040", `"own";r=7;t=40`, `"own";q=9;w=60`, "", ""}
	if diff := cmp.Diff(want, got); diff != "" || d.Rule != "own" {
		t.Errorf("hidden, allowed (-want +got):\n%s", diff)
	}
	got, plan, d := fieldsOf(t, store, 1, policy(false))
	if diff := cmp.Diff(response.Fields{response.FieldRetryAfter: "40"}, got); diff != "" || d.Rule != "all" || d.Policy != "" || d.Limit != nil {
		t.Errorf("hidden, refused: %+v (-want +got):\n%s", d, diff)
	}
	if _, named := problem(t, plan, &d)["violated-policies"]; named {
		t.Errorf("the body of a denial by a hidden limit names policies")
	}
	got, plan, d = fieldsOf(t, newCounters(), 3, policy(true))
	want = response.Fields{"2", "0", "1700000040", `"all";r=0;t=40`,
		`"shadow";q=1;w=60, "all";q=2;w=60, "own";q=9;w=60`, "40", ""}
	if diff := cmp.Diff(want, got); diff != "" || d.Policy != "all" {
		t.Errorf("exposed, refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{"all"}, problem(t, plan, &d)["violated-policies"]); diff != "" {
		t.Errorf("violated policies (-want +got):\n%s", diff)
	}
}

// TestHeaderFamilies: each policy can have its own header family.
func TestHeaderFamilies(t *testing.T) {
	pol := func(name string, families policy.HeaderFamilies, limit string) *core.Ruleset {
		return compile(t, policy.Policy{Name: name, Headers: families, Rules: []policy.Rule{{Name: name, Limits: limittest.All(t, limit)}}})
	}
	x, ietf := pol("x", policy.HeadersX, "5/1m fw"), pol("ietf", policy.HeadersIETF, "9/1m fw")
	none, few := pol("none", policy.HeadersNone, "1/1m fw"), pol("few", policy.HeadersIETF, "1/1m fw")
	for _, c := range []struct {
		what     string
		n        int
		policies []*core.Ruleset
		want     response.Fields
	}{
		{"x alone", 1, []*core.Ruleset{x}, response.Fields{response.FieldLimit: "5", response.FieldRemaining: "4", response.FieldReset: "1700000040"}},
		{"ietf alone", 1, []*core.Ruleset{ietf}, response.Fields{response.FieldRateLimit: `"ietf";r=8;t=40`, response.FieldPolicy: `"ietf";q=9;w=60`}},
		{"none alone", 1, []*core.Ruleset{none}, response.Fields{}},
		{"none, refused", 2, []*core.Ruleset{none, x}, response.Fields{response.FieldRetryAfter: "40"}},
		{"one each", 1, []*core.Ruleset{ietf, none, x}, response.Fields{"5", "4", "1700000040", `"ietf";r=8;t=40`, `"ietf";q=9;w=60`, "", ""}},
		{"refused by ietf", 2, []*core.Ruleset{x, few, ietf}, response.Fields{response.FieldRateLimit: `"few";r=0;t=40`,
			response.FieldPolicy: `"few";q=1;w=60, "ietf";q=9;w=60`, response.FieldRetryAfter: "40"}},
	} {
		got, _, _ := fieldsOf(t, newCounters(), c.n, c.policies...)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}

// problem decodes the body of a denial.
func problem(t *testing.T, p *core.Plan, d *core.Decision) map[string]any {
	t.Helper()
	body := response.AppendProblem([]byte("before"), p, d)
	var out map[string]any
	if err := json.Unmarshal(body[len("before"):], &out); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return out
}

func TestProblemExceeded(t *testing.T) {
	store := newCounters()
	rs := oneRule(t, "3/1m fw", "3/1d fw", "90/1h fw")
	_, plan, d := fieldsOf(t, store, 4, rs)
	const want = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
		`"detail":"Too many requests: try again in 6400 seconds.","violated-policies":["default-1m","default-1d"],` +
		`"error":"Rate limit exceeded","retry_after":6400}`
	if got := string(response.AppendProblem(nil, plan, &d)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var text []byte
	if n := testing.AllocsPerRun(100, func() { text = response.AppendProblem(text[:0], plan, &d) }); n != 0 {
		t.Errorf("AppendProblem allocates %v times", n)
	}
}

// TestNeverPasses: a request whose cost exceeds the limit is denied without a time to retry. A
// policy with such a fixed cost does not compile, but a computed cost can exceed the limit.
func TestNeverPasses(t *testing.T) {
	plan := new(core.Plan)
	plan.Add(oneRule(t, "3/1m fw", "9/1m sl"), get("192.0.2.1", "/"))
	plan.Checks()[0].Cost = 4
	store := newCounters()
	store.take(plan.Checks(), plan.Results())
	d := plan.Decide()
	if d.RetryAfter != counter.Never || d.Status != 429 {
		t.Fatalf("%+v", d)
	}
	got := headers(plan, &d)
	if got[response.FieldRetryAfter] != "" || got[response.FieldRateLimit] != `"default-1m-fw";r=3` || got[response.FieldReset] != "1700000040" {
		t.Errorf("fields %+v", got)
	}
	body := problem(t, plan, &d)
	if _, timed := body["retry_after"]; timed || body["detail"] != "The request costs more than the limit lets through at once: it can never pass." {
		t.Errorf("body %v", body)
	}
}

func TestProblemsWithoutALimit(t *testing.T) {
	rs := compile(t, policy.Policy{Name: "n", OnError: counter.OnErrorDeny, Rules: []policy.Rule{
		{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Path: []string{"/no"}}},
		{Name: "user", Limits: limittest.All(t, "1/1m"), Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "user"}}, Missing: policy.MissingDeny,
			Match: policy.Match{Path: []string{"/user"}}},
		{Name: "all", Limits: limittest.All(t, "1/1m")},
	}})
	for _, c := range []struct{ path, kind, title string }{
		{"/no", "about:blank", "Forbidden"},
		{"/user", "about:blank", "Forbidden"},
		{"/", "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
			"Request cannot be satisfied due to temporary server capacity constraints"},
	} {
		plan := new(core.Plan)
		plan.Add(rs, get("192.0.2.1", c.path))
		d := plan.Degrade()
		body := problem(t, plan, &d)
		if body["type"] != c.kind || body["title"] != c.title || body["status"] != float64(d.Status) || body["detail"] == "" {
			t.Errorf("%s: %v", c.path, body)
		}
		if _, named := body["violated-policies"]; named || headers(plan, &d) != (response.Fields{}) {
			t.Errorf("%s names policies", c.path)
		}
	}
	plan := new(core.Plan)
	d := plan.Decide()
	if body := response.AppendProblem(nil, plan, &d); len(body) != 0 || d.Outcome != core.OutcomeNone {
		t.Errorf("a request that goes on has the body %s", body)
	}
}

// BenchmarkHeaders measures a decision and its fields under three limits.
func BenchmarkHeaders(b *testing.B) {
	p := policy.Policy{Name: "n"}
	for _, name := range []string{"everything", "api", "items"} {
		p.Rules = append(p.Rules, policy.Rule{Name: name, Limits: limittest.All(b, "1000000/1m")})
	}
	rs, err := core.Compile(p)
	if err != nil {
		b.Fatal(err)
	}
	var plan core.Plan
	var writer response.Writer
	plan.Add(rs, get("203.0.113.7", "/api/items/42"))
	newCounters().take(plan.Checks(), plan.Results())
	b.ReportAllocs()
	for b.Loop() {
		d := plan.Decide()
		if f := writer.Headers(&plan, &d); f[response.FieldLimit] == "" {
			b.Fatal("no limit is shown")
		}
	}
}
