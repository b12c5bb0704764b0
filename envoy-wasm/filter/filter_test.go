// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestTheWayOfARequest: a request is paused, decided by the bridge and resumed, and its response
// gets limit headers.
func TestTheWayOfARequest(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	s := f.NewStream(7)
	if s.RequestHeaders(get("/api/x?q=1")) != Pause || e.wakes != 1 || len(e.calls) != 0 {
		t.Fatal("a request under a limit waits for a call, which is sent when the worker is woken")
	}
	f.Flush()
	c, call, items := e.check()
	if call.Version != "v1" || len(items) != 1 || c.TimeoutMillis != 3000 || c.Method != "POST" {
		t.Fatalf("%+v %v", c, items)
	}
	if a := items[0].Ask; a.Path != "/api/x" || a.Query != "" || a.Peer.String() != "192.0.2.7" || a.Host != "example.com" {
		t.Errorf("asked about %+v", a)
	}
	c.answer(replyWith(admittedWith(9)))
	if !slices.Equal(e.resumed, []uint32{7}) || len(e.responses) != 0 {
		t.Fatalf("resumed %v", e.resumed)
	}
	want := [][2]string{{"x-ratelimit-limit", "10"}, {"x-ratelimit-remaining", "9"}, {"x-ratelimit-reset", "61"},
		{"ratelimit", `"api";r=9;t=1`}, {"ratelimit-policy", `"api";q=10;w=60`}}
	if got := s.ResponseHeaders(nil, true); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	equalCounts(t, e, map[string]int{"allowed": 1, "policy_loaded": 1})
}

func TestADenialIsAnsweredHere(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	s := f.NewStream(7)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	c, _, _ := e.check()
	c.answer(replyWith(denialOver()))
	r := e.responses[7]
	if r.Status != 429 || len(e.resumed) != 0 || !slices.Contains(r.Headers, [2]string{"retry-after", "30"}) ||
		!slices.Contains(r.Headers, [2]string{"content-type", "application/problem+json"}) {
		t.Errorf("%+v", r)
	}
	if got := s.ResponseHeaders(nil, true); got != nil || s.Responds() {
		t.Errorf("Envoy shows us our own answer, which has its fields: %v", got)
	}
}

// TestRequestsWithoutLimitsContinue: a request without limits causes no call and gets no headers.
func TestRequestsWithoutLimitsContinue(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	s := f.NewStream(1)
	if s.RequestHeaders(get("/other")) != Continue || e.wakes+len(e.calls) != 0 || s.ResponseHeaders(nil, true) != nil {
		t.Error("it waits, or is told of a limit")
	}
}

// TestCallsAreShared: requests that arrive during a call share the next one, and each gets its own
// answer.
func TestCallsAreShared(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	f.NewStream(1).RequestHeaders(get("/api/1"))
	f.Flush()
	first, _, _ := e.check()
	for id := uint32(2); id <= 5; id++ {
		f.NewStream(id).RequestHeaders(get("/api/x"))
		e.now += burstSpan
	}
	f.Flush()
	if e.wakes != 1 || len(e.calls) != 0 {
		t.Fatalf("%d wakes, %d calls while one is under way", e.wakes, len(e.calls))
	}
	first.answer(replyWith(admittedWith(9)))
	second, _, items := e.check()
	if len(items) != 4 || !slices.Equal(e.resumed, []uint32{1}) {
		t.Fatalf("%d items, resumed %v", len(items), e.resumed)
	}
	second.answer(replyWith(admittedWith(8), denialOver(), wire.Answer{Status: wire.StatusInvalid}, admittedWith(7)))
	if !slices.Equal(e.resumed, []uint32{1, 2, 5}) || e.responses[3].Status != 429 || e.responses[4].Status != 429 {
		t.Errorf("resumed %v, answered %v", e.resumed, e.responses)
	}
	equalCounts(t, e, map[string]int{"allowed": 3, "denied": 2, "remembered": 1, "bridge_unanswered": 1, "policy_loaded": 1})
}

// TestAGoneRequestIsSkipped: a request of a shared call is skipped if it ends before the call is
// sent or while the call is in flight.
func TestAGoneRequestIsSkipped(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	var streams []*Stream
	for id := uint32(1); id <= 3; id++ {
		s := f.NewStream(id)
		s.RequestHeaders(get("/api/x"))
		streams = append(streams, s)
	}
	streams[0].Done()
	f.Flush()
	c, _, items := e.check()
	streams[1].Done()
	c.answer(replyWith(admittedWith(9), admittedWith(8)))
	if len(items) != 2 || !slices.Equal(e.resumed, []uint32{3}) {
		t.Errorf("%d items, resumed %v", len(items), e.resumed)
	}
}

// TestDeadlines: after its deadline, a call does not delay other calls, but its requests continue
// to wait. on_error decides after the bridge has been silent for a second.
func TestDeadlines(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	e.passTicks(f, 30*counter.Millisecond)
	f.NewStream(2).RequestHeaders(get("/api/x"))
	if e.passTicks(f, 30*counter.Millisecond); len(e.resumed) != 0 || len(e.calls) != 1 {
		t.Fatalf("resumed %v after 60 ms, %d calls beside the first", e.resumed, len(e.calls))
	}
	e.passTicks(f, counter.Second)
	if !slices.Equal(e.resumed, []uint32{1, 2}) || s.ResponseHeaders(nil, true) != nil {
		t.Fatalf("resumed %v after a second", e.resumed)
	}
	first.answer(replyWith(admittedWith(9))) // late
	if len(e.resumed) != 2 {
		t.Error("a late answer resumes a request again")
	}
	equalCounts(t, e, map[string]int{"degraded": 2, "bridge_timeout": 2, "bridge_late": 1, "policy_loaded": 1})
}

// TestFailedCalls: after a failed call of any kind, the requests pass, and the failure is counted
// by its kind.
func TestFailedCalls(t *testing.T) {
	bad := replyWith(admittedWith(9))
	bad.Body = append(bad.Body[:len(bad.Body)-1], 0xff)
	for name, c := range map[string]struct {
		reply Reply
		count string
	}{
		"refused":          {Reply{Status: 503}, "bridge_unreachable"},
		"timed out":        {Reply{Status: 504}, "bridge_unreachable"},
		"no answer":        {Reply{}, "bridge_unreachable"},
		"an error":         {Reply{Status: 500, Body: []byte("oops")}, "bridge_unanswered"},
		"garbage":          {Reply{Status: 200, Body: []byte("<html>")}, "bridge_unanswered"},
		"nothing":          {Reply{Status: 200}, "bridge_unanswered"},
		"a megabyte":       {Reply{Status: 200, Body: make([]byte, 2<<20)}, "bridge_unanswered"},
		"cut":              {bad, "bridge_unanswered"},
		"too few answers":  {replyWith(), "bridge_unanswered"},
		"too many results": {replyWith(wire.Answer{Results: make([]counter.Result, 2)}), "bridge_unanswered"},
		"store down":       {replyWith(wire.Answer{Status: wire.StatusUnavailable}), "store_unavailable"},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"))
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.Flush()
		call, _, _ := e.check()
		call.answer(c.reply)
		if !slices.Equal(e.resumed, []uint32{1}) || e.counts[CounterDegraded] != 1 || e.count()[c.count] != 1 {
			t.Errorf("%s: resumed %v, counted %v", name, e.resumed, e.count())
		}
	}
}

func TestOnErrorDeny(t *testing.T) {
	e := newEnvoy(t)
	p := shopPolicy(t, "10/1m")
	p.OnError = counter.OnErrorDeny
	f := withPolicy(t, e, p)
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	c, _, _ := e.check()
	c.answer(Reply{Status: 503})
	if e.responses[1].Status != 503 || len(e.resumed) != 0 {
		t.Errorf("%+v", e.responses)
	}
	equalCounts(t, e, map[string]int{"denied": 1, "bridge_unreachable": 1, "policy_loaded": 1})
}

// TestAHungBridgeCostsAFewDeadlines: after a few failed calls no request waits for the bridge,
// until the bridge answers an empty call.
func TestAHungBridgeCostsAFewDeadlines(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	for id := range uint32(failuresMax) {
		f.NewStream(id).RequestHeaders(get("/api/x"))
		f.Flush()
		c, _, _ := e.check()
		c.answer(Reply{Status: 504})
	}
	if f.NewStream(99).RequestHeaders(get("/api/x")) != Continue || e.counts[CounterOpen] != 1 {
		t.Fatal("a request waits for a bridge that is gone")
	}
	f.Tick()
	e.calls = nil // a poll
	e.now += openFor
	f.Tick()
	f.Tick()
	probe, _, items := e.check()
	if len(items) != 0 || len(e.calls) > 1 {
		t.Fatalf("a probe asks about %v", items)
	}
	probe.answer(replyWith())
	if f.NewStream(100).RequestHeaders(get("/api/x")) != Pause {
		t.Error("the bridge is back, and is not asked")
	}
}

// TestCallsThatCannotBeMade: Envoy rejects a call at once if there is no cluster or no capacity.
func TestCallsThatCannotBeMade(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	e.refuses = errNo
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	if !slices.Equal(e.resumed, []uint32{1}) {
		t.Fatal("the request waits for a call that was never made")
	}
	e.refuses, e.sleeps = nil, errNo
	if f.NewStream(2).RequestHeaders(get("/api/x")) != Continue {
		t.Error("the request waits for a worker that cannot be woken")
	}
	e.sleeps = nil
	if f.NewStream(3).RequestHeaders(get("/api/x")) != Pause {
		t.Error("the next is not asked about")
	}
}

// TestNoPolicyYet: without a policy, on_error of the configuration decides.
func TestNoPolicyYet(t *testing.T) {
	for setting, want := range map[string]Action{"": Continue, "on_error: deny": Pause} {
		e := newEnvoy(t)
		f, err := New(e, []byte(setting))
		if err != nil {
			t.Fatal(err)
		}
		s := f.NewStream(1)
		if got := s.RequestHeaders(get("/api/x")); got != want || (e.responses[1].Status == 503) != (want == Pause) || s.Responds() {
			t.Errorf("%q: %v, %+v", setting, got, e.responses)
		}
	}
}

// TestAnotherPolicy: a new policy takes effect at the next poll. A policy that cannot be read does
// not take effect, and is logged once.
func TestAnotherPolicy(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	f.Tick()
	if len(e.calls) != 0 {
		t.Fatal("asked again at once")
	}
	for _, c := range []struct {
		reply    Reply
		version  string
		warnings int
	}{
		{Reply{Status: 304}, "v1", 0},
		{Reply{Status: 503}, "v1", 0},
		{Reply{Status: 200, ETag: `"bad"`, Body: []byte("oops")}, "v1", 1},
		{Reply{Status: 200, ETag: `"v2"`, Body: compact.AppendPolicy(nil, new(corepolicy.Policy), "v2")}, "v2", 1},
	} {
		e.now += f.config.Poll
		f.Tick()
		f.Tick()
		if len(e.calls) != 1 {
			t.Fatalf("%d calls", len(e.calls))
		}
		call := e.calls[0]
		e.calls = nil
		call.answer(c.reply)
		if f.policy.version != c.version || len(e.warnings) != c.warnings {
			t.Errorf("%d %s: in force is %s, warned %q", c.reply.Status, c.reply.ETag, f.policy.version, e.warnings)
		}
	}
	if f.NewStream(1).RequestHeaders(get("/api/x")) != Continue {
		t.Error("the policy before is still in force")
	}
}
