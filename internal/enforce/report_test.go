// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/request"
)

// fixedStore is a store that denies every check, or admits every check.
type fixedStore struct{ denies bool }

func (a *fixedStore) Take(_ context.Context, _ []counter.Check, results []counter.Result) error {
	for i := range results {
		results[i] = counter.Result{Denied: a.denies, Wait: counter.Second, Remaining: 1}
	}
	return nil
}

// reportTest tests an enforcer that reports events to a log. The test determines when a second of
// the log ends.
type reportTest struct {
	t        testing.TB
	store    fixedStore
	enforcer *Enforcer
	due      []func()
	written  []events.Event
	versions []*live.Version
	plan     core.Plan
}

// Write implements [events.Sink].
func (r *reportTest) Write(all []events.Event) (int, error) {
	r.written = append(r.written, all...)
	return len(all), nil
}

func newReportTest(t testing.TB, policies ...string) *reportTest {
	r := &reportTest{t: t}
	r.enforcer = New(&r.store, metrics.New())
	log := events.New(events.Options{Node: "n1", After: func(_ time.Duration, f func()) { r.due = append(r.due, f) }})
	log.Attach(r)
	r.enforcer.Report(log)
	for _, text := range policies {
		d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := live.Open(live.Options{Source: live.Fixed(d), Verifiers: live.NewVerifiers(slog.New(slog.DiscardHandler)),
			Metrics: metrics.New(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		r.versions = append(r.versions, p.Current())
	}
	return r
}

// reportTest.ask decides a request of a client, and reports the decision.
func (r *reportTest) ask(path string, denies bool) core.Decision {
	r.store.denies = denies
	r.plan.Reset()
	for _, v := range r.versions {
		r.plan.Add(v.Ruleset, &request.Attributes{PathText: path, MethodText: "POST", PeerAddr: netip.MustParseAddr("192.0.2.7")})
	}
	d := r.plan.Decide()
	if checks := r.plan.Checks(); len(checks) > 0 {
		d, _ = r.enforcer.Ask(&r.plan, checks)
	}
	r.enforcer.Count(&r.plan, &d, r.versions...)
	return d
}

// reportTest.events ends the second and returns its events.
func (r *reportTest) events() (all []events.Event) {
	due := r.due
	r.due = nil
	for _, f := range due {
		f()
	}
	all, r.written = r.written, nil
	return all
}

// TestReport: the policy that made the decision determines whether it is reported, and what the
// event shows.
func TestReport(t *testing.T) {
	const rules = "rules: [{name: api, match: {path: /api/*}, limit: 5/1m}, {name: all, per: [], limit: 5/1h}]"
	for name, c := range map[string]struct {
		policies       []string
		path           string
		denies         bool
		kind, decision string // the expected event; "" if there is none
		shown          events.Event
	}{
		"off":              {policies: []string{"{name: shop, " + rules + "}"}, path: "/api/x", denies: true},
		"denied":           {[]string{"{name: shop, events: {}, " + rules + "}"}, "/api/x", true, "denied", "denied", events.Event{Rule: "api", Limit: "5/1m", Path: "/api/*", Policy: "shop"}},
		"hidden limit":     {[]string{"{name: shop, events: {}, " + rules + "}"}, "/x", true, "denied", "denied", events.Event{Rule: "all", Limit: "5/1h", Policy: "shop"}},
		"full path":        {[]string{"{name: shop, events: {path: full}, " + rules + "}"}, "/api/x", true, "denied", "denied", events.Event{Rule: "api", Limit: "5/1m", Path: "/api/x", Policy: "shop"}},
		"no path":          {[]string{"{name: shop, events: {path: none}, " + rules + "}"}, "/api/x", true, "denied", "denied", events.Event{Rule: "api", Limit: "5/1m", Policy: "shop"}},
		"admitted":         {[]string{"{name: shop, events: {}, " + rules + "}"}, "/api/x", false, "", "", events.Event{}},
		"every admission":  {[]string{"{name: shop, events: {admitted: 1}, " + rules + "}"}, "/api/x", false, "admitted", "allowed", events.Event{Rule: "api", Limit: "5/1m", Path: "/api/*", Policy: "shop"}},
		"admissions alone": {[]string{"{name: shop, events: {denied: none, admitted: 1}, " + rules + "}"}, "/api/x", true, "", "", events.Event{}},
		"blocked":          {[]string{"{name: shop, events: {}, block: {ip: 192.0.2.7}, " + rules + "}"}, "/api/x", false, "denied", "blocked", events.Event{Rule: "block[0]", Policy: "shop"}},
		"another policy": {[]string{"{name: a, events: {}, rules: [{name: a, match: {path: /a}, limit: 1/1m}]}", "{name: b, " + rules + "}"}, "/api/x", true, "",
			"", events.Event{}},
		"the second policy": {[]string{"{name: a, rules: [{name: a, match: {path: /a}, limit: 1/1m}]}", "{name: b, events: {}, " + rules + "}"}, "/api/x", true, "denied",
			"denied", events.Event{Rule: "api", Limit: "5/1m", Path: "/api/*", Policy: "b"}},
		"no rule": {[]string{"{name: a, events: {admitted: 1}, rules: [{name: a, match: {path: /a}, limit: 1/1m}]}"}, "/x", false, "", "", events.Event{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReportTest(t, c.policies...)
			for range 3 {
				r.ask(c.path, c.denies)
			}
			all := r.events()
			if c.kind == "" {
				if len(all) > 0 {
					t.Errorf("%+v", all)
				}
				return
			}
			if len(all) != 1 {
				t.Fatalf("%d events", len(all))
			}
			got := all[0]
			want := c.shown
			want.Kind, want.Decision, want.Client, want.IP, want.Method, want.Node, want.Count = c.kind, c.decision, "ip:192.0.2.7", "192.0.2.7", "POST", "n1", 3
			want.Time, want.Version, want.Status, want.Share = got.Time, got.Version, got.Status, got.Share
			if want.Limit != "" && c.denies {
				want.RetryAfterMS = 1000
			}
			if got != want || got.Version == "" || (got.Status == 0) != (c.kind == "admitted") {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// TestRulesReportOnTheirOwn: the block "events" of a rule replaces that of its policy, field by
// field. A field that the rule omits has the value in the policy.
func TestRulesReportOnTheirOwn(t *testing.T) {
	const api, other = "{name: api, match: {path: /api/*}, limit: 5/1m, events: ", "}, {name: other, match: {path: /other}, limit: 5/1m}]}"
	for name, c := range map[string]struct{ policy, want string }{
		"only one rule":  {"{name: shop, rules: [" + api + "{}" + other, "denied api ip:192.0.2.7 /api/*"},
		"all but one":    {"{name: shop, events: {}, rules: [" + api + "{denied: none}" + other, "denied other ip:192.0.2.7 /other"},
		"as the policy":  {"{name: shop, events: {denied: none, admitted: 1, ip: none}, rules: [" + api + "{denied: all, admitted: 0}" + other, "admitted other ip /other; denied api ip /api/*"},
		"the rule shows": {"{name: shop, events: {denied: none}, rules: [" + api + "{denied: all, ip: prefix, path: full}" + other, "denied api ip:192.0.2.0/24 /api/x"},
		"sampled alone":  {"{name: shop, events: {}, rules: [" + api + "{denied: none, admitted: 1}" + other, "admitted api ip:192.0.2.7 /api/*; denied other ip:192.0.2.7 /other"},
	} {
		r := newReportTest(t, c.policy)
		var got []string
		for _, path := range []string{"/api/x", "/other"} {
			r.ask(path, true)
			r.ask(path, false)
		}
		for _, e := range r.events() {
			got = append(got, fmt.Sprint(e.Kind, " ", e.Rule, " ", e.Client, " ", e.Path))
		}
		slices.Sort(got)
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
	r := newReportTest(t, "{name: shop, rules: ["+api+"{}"+other)
	if v := r.versions[0]; !v.Reports() || !v.ReportsDenials() || v.EventsOf("other").Reports() {
		t.Error("the policy reports the denials of one rule alone")
	}
}

// begunRequest is an enforced request that began a millisecond ago.
type begunRequest struct{ request.Attributes }

func (begunRequest) Began() counter.Micros {
	return counter.Micros(time.Now().Add(-time.Millisecond).UnixMicro())
}

// TestEventsHaveWaitAndLatency: an event has the wait of the denied client, and how long the
// decision took if the beginning of the request is known. If another process made the decision, the
// event has neither.
func TestEventsHaveWaitAndLatency(t *testing.T) {
	r := newReportTest(t, "{name: shop, events: {admitted: 1}, rules: [{name: api, limit: 5/1m}]}")
	d := r.ask("/", true)
	if all := r.events(); len(all) != 1 || all[0].RetryAfterMS != 1000 || all[0].LatencyUS != 0 {
		t.Errorf("a denial: %+v", all)
	}
	r.enforcer.ReportDenials(&r.plan, &d, r.versions[0], 3, 0)
	if all := r.events(); len(all) != 1 || all[0].RetryAfterMS != 0 || all[0].LatencyUS != 0 {
		t.Errorf("a denial of another process: %+v", all)
	}
	for denies, wait := range map[bool]int64{true: 1000, false: 0} {
		r.store.denies = denies
		r.plan.Reset()
		r.plan.Add(r.versions[0].Ruleset, &begunRequest{request.Attributes{PathText: "/", PeerAddr: netip.MustParseAddr("192.0.2.7")}})
		d, _ = r.enforcer.Ask(&r.plan, r.plan.Checks())
		r.enforcer.Count(&r.plan, &d, r.versions...)
		if all := r.events(); len(all) != 1 || all[0].RetryAfterMS != wait || all[0].LatencyUS < 900 || all[0].LatencyUS > 60e6 {
			t.Errorf("denied %t: %+v", denies, all)
		}
	}
}

// TestShareOfAdmissions: of many admissions, the share that the policy states is reported.
func TestShareOfAdmissions(t *testing.T) {
	r := newReportTest(t, "{name: shop, events: {admitted: 0.1}, rules: [{name: api, limit: 5/1m}]}")
	const requests = 20_000
	for range requests {
		r.ask("/", false)
	}
	all := r.events()
	if len(all) != 1 || all[0].Share != 0.1 || all[0].Count < requests/10*8/10 || all[0].Count > requests/10*12/10 {
		t.Errorf("%+v", all)
	}
}

// TestOutagesAreEvents: an outage of the store is reported as two events, if a policy reports
// events. The enforcer may receive the log of events before or after that of outages.
func TestOutagesAreEvents(t *testing.T) {
	for _, before := range []bool{true, false} {
		outagesAreEvents(t, before)
	}
}

func outagesAreEvents(t *testing.T, before bool) {
	t.Helper()
	o := newOutageTest(t)
	r := newReportTest(t)
	if before {
		outages := o.enforcer.outages
		o.enforcer.outages = nil
		o.enforcer.Report(r.enforcer.events)
		o.enforcer.Log(outages)
	} else {
		o.enforcer.Report(r.enforcer.events)
	}
	o.err = fmt.Errorf("%w: it is away", counter.ErrUnavailable)
	o.enforcer.events.Want()
	o.request(1, "allow")
	o.pass(3538 * time.Millisecond) // Duration.Seconds returns this value with an error in the 16th digit
	o.request(2, "allow")
	o.err = nil
	o.pass(time.Second)
	o.request(1, "allow")
	for range 3 {
		o.pass(outageQuiet)
	}
	all := r.events()
	if len(all) != 2 || all[0].Kind != events.KindDegraded || all[0].State != "began" || all[0].Reason == "" ||
		all[1].State != "ended" || all[1].Count != 3 {
		t.Errorf("%+v\nlog: %s", all, o.out.String())
	}
	if line := string(all[1].AppendJSON(nil)); !strings.Contains(line, `"seconds":3.538,`) {
		t.Errorf("the end of the outage is %s", line)
	}
}

// TestReportingAllocatesNothing: neither repeated denials nor admissions that are not selected
// allocate memory.
func TestReportingAllocatesNothing(t *testing.T) {
	for _, denies := range []bool{true, false} {
		r := newReportTest(t, "{name: shop, events: {admitted: 0.000001}, rules: [{name: api, match: {path: /api/*}, limit: 5/1m}]}")
		d := r.ask("/api/x", denies)
		if n := testing.AllocsPerRun(100, func() { r.enforcer.Count(&r.plan, &d, r.versions...) }); n != 0 {
			t.Errorf("denied %t: %v allocations", denies, n)
		}
	}
}

// BenchmarkReport measures what events add to a decision, compared with the case "off".
func BenchmarkReport(b *testing.B) {
	for _, c := range []struct {
		name, words string
		denies      bool
	}{{"denied/off", "", true}, {"denied/on", "events: {admitted: 0.001}, ", true}, {"admitted/off", "", false},
		{"admitted/on", "events: {admitted: 0.001}, ", false}} {
		b.Run(c.name, func(b *testing.B) {
			r := newReportTest(b, "{name: shop, "+c.words+"rules: [{name: api, match: {path: /api/*}, limit: 5/1m}]}")
			d := r.ask("/api/x", c.denies)
			b.ReportAllocs()
			for b.Loop() {
				r.enforcer.Count(&r.plan, &d, r.versions...)
			}
		})
	}
}
