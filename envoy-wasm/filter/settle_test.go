// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// reservedAnswer returns an answer with reserved units and a receipt to refund them.
func reservedAnswer(units int64) wire.Answer {
	a := admittedWith(90)
	a.Results[0].Granted, a.Receipt = units, "sealed"
	return a
}

// costsPolicy returns a policy with one rule, to which it has applied the function change.
func costsPolicy(t *testing.T, change func(*corepolicy.Rule)) corepolicy.Policy {
	t.Helper()
	p := shopPolicy(t, "100/1m")
	change(&p.Rules[0])
	return p
}

func byHeader(r *corepolicy.Rule) {
	r.CostAfter = &corepolicy.CostAfter{Header: "X-Cost", Estimate: 10, Default: 25, Max: 50}
}
func byBody(r *corepolicy.Rule) {
	r.CostAfter = &corepolicy.CostAfter{JSON: "usage.total_tokens", Estimate: 10, Default: 25, Max: 50}
}

func countedLogins(r *corepolicy.Rule) { r.CountIf = []corepolicy.Statuses{{From: 401, To: 401}} }

// receivedSettlement returns the settlement that the bridge receives, or nil.
func receivedSettlement(t *testing.T, e *fakeEnvoy, f *Filter) *wire.Settle {
	t.Helper()
	f.Flush()
	if len(e.calls) == 0 {
		return nil
	}
	c, _, items := e.check()
	c.answer(replyWith(wire.Answer{}))
	if len(items) != 1 || items[0].Kind != wire.KindSettle {
		t.Fatalf("the bridge is told %+v", items)
	}
	return &items[0].Settle
}

// upstreamResponse is a case of a response. A "|" in its body marks where the body is split.
type upstreamResponse struct {
	rule     func(*corepolicy.Rule)
	response [][2]string
	body     string
	trailers [][2]string
	cut      bool // the stream ends before the body
	want     *wire.Settle
	early    bool   // settled before the body
	cost     string // X-RateLimit-Cost; "" if no rule defines costs
}

// TestSettling tests which settlement the bridge receives for a response, and when it receives it.
func TestSettling(t *testing.T) {
	json := []string{"content-type", "application/json"}
	const tokens = `{"usage":{"tot|al_tokens":7}}`
	unread := []wire.Field{{Name: "usage.total_tokens", Text: ">"}}
	for name, c := range map[string]upstreamResponse{
		"a part": {rule: byBody, response: okHeaders("206", json...), body: tokens, cost: "10",
			want: &wire.Settle{Status: 206, Numbers: []wire.Field{{Name: "usage.total_tokens", Text: ">7"}}}},
		"a 304": {rule: byBody, response: okHeaders("304"), early: true, cost: "10", want: &wire.Settle{Status: 304, Numbers: unread}},
		"a header": {rule: byHeader, response: okHeaders("200", "x-cost", "4"), body: "x", early: true, cost: "4",
			want: &wire.Settle{Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "4"}}}},
		"a header and a body": {rule: byHeader, response: okHeaders("200", "x-cost", "10"), body: "x", cost: "10"},
		"an absurd header": {rule: byHeader, response: okHeaders("200", "x-cost", "-4"), early: true, cost: "25",
			want: &wire.Settle{Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "-4"}}}},
		"two lines": {rule: byHeader, response: okHeaders("200", "x-cost", "4", "x-cost", "5"), early: true, cost: "25",
			want: &wire.Settle{Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "4, 5"}}}},
		"a trailer": {rule: byHeader, response: okHeaders("200"), body: "x", trailers: [][2]string{{"x-cost", "6"}}, cost: "10",
			want: &wire.Settle{Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "6"}}}},
		"no trailer": {rule: byHeader, response: okHeaders("200"), body: "x", cost: "10", want: &wire.Settle{Status: 200}},
		"no header, and no trailers can come": {rule: byHeader, response: okHeaders("200", "content-length", "1"), body: "x",
			early: true, cost: "25", want: &wire.Settle{Status: 200}},
		"a body": {rule: byBody, response: okHeaders("200", json...), body: tokens, cost: "10",
			want: &wire.Settle{Status: 200, Numbers: []wire.Field{{Name: "usage.total_tokens", Text: "7"}}}},
		"an event stream": {rule: byBody, response: okHeaders("200", "content-type", "text/event-stream"),
			body: "data: {\"usage\":{\"total_tokens\":7}}\n|\ndata: {\"usage\":{\"total_tokens\":9}}\n\ndata: [DONE]\n\n", cost: "10",
			want: &wire.Settle{Status: 200, Numbers: []wire.Field{{Name: "usage.total_tokens", Text: "9"}}}},
		"an event stream that is cut": {rule: byBody, response: okHeaders("200", "content-type", "text/event-stream"), cut: true,
			body: "data: {\"usage\":{\"total_tokens\":7}}\n\n|data: {\"us", cost: "10",
			want: &wire.Settle{Status: 200, Numbers: []wire.Field{{Name: "usage.total_tokens", Text: ">7"}}}},
		"a document that is cut": {rule: byBody, response: okHeaders("200", json...), body: `{"usage":{"total_tokens":7}`, cut: true,
			cost: "10", want: &wire.Settle{Status: 200, Numbers: unread}},
		"a body before a trailer that is cut": {rule: byHeader, response: okHeaders("200"), body: "x", cut: true, cost: "10",
			want: &wire.Settle{Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: ">"}}}},
		"a compressed body": {rule: byBody, response: append(okHeaders("200", json...), [2]string{"content-encoding", "gzip"}), body: "x",
			early: true, cost: "10", want: &wire.Settle{Status: 200, Numbers: unread}},
		"a document of more than 1 MiB": {rule: byBody, response: okHeaders("200", json...),
			body: strings.Repeat(" ", 1<<20) + "|" + tokens, cost: "10", want: &wire.Settle{Status: 200, Numbers: unread}},
		"no body": {rule: byBody, response: okHeaders("204", json...), early: true, cost: "10", want: &wire.Settle{Status: 204}},
		"gRPC": {rule: countedLogins, response: okHeaders("200", "content-type", "application/grpc", "grpc-status", "0"), early: true,
			want: &wire.Settle{Status: 200}},
		"gRPC with a trailer": {rule: countedLogins, response: okHeaders("200", "content-type", "application/grpc"), body: "x",
			trailers: [][2]string{{"grpc-status", "5"}}, want: &wire.Settle{Status: 404}},
		"gRPC that failed, in a trailer": {rule: countedLogins, response: okHeaders("200", "content-type", "application/grpc"), body: "x",
			trailers: [][2]string{{"grpc-status", "16"}}},
		"gRPC that failed": {rule: countedLogins, response: okHeaders("200", "content-type", "application/grpc", "grpc-status", "16")},
		"gRPC in another spelling": {rule: countedLogins, response: okHeaders("200", "content-type", "application/GRPC"), body: "x",
			trailers: [][2]string{{"grpc-status", "16"}}},
		"gRPC that is cut":          {rule: countedLogins, response: okHeaders("200", "content-type", "application/grpc"), body: "x", cut: true},
		"gRPC-Web without a status": {rule: countedLogins, response: okHeaders("200", "content-type", "application/grpc-web"), body: "x"},
		"given back": {rule: func(r *corepolicy.Rule) { r.RefundOn = []corepolicy.Statuses{{From: 500, To: 599}} }, response: okHeaders("503"),
			body: "x", early: true, want: &wire.Settle{Status: 503}},
		"not given back": {rule: func(r *corepolicy.Rule) { r.RefundOn = []corepolicy.Statuses{{From: 500, To: 599}} }, response: okHeaders("200"),
			body: "x"},
		"does not count": {rule: countedLogins, response: okHeaders("200"),
			body: "x", early: true, want: &wire.Settle{Status: 200}},
	} {
		t.Run(name, func(t *testing.T) { settles(t, c) })
	}
}

func settles(t *testing.T, c upstreamResponse) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, c.rule))
	s := admitted(t, e, f, 1, reservedAnswer(10), get("/api/x"))
	fields := s.ResponseHeaders(c.response, c.body == "")
	if got := fieldOf(fields, "x-ratelimit-cost"); got != c.cost {
		t.Errorf("X-RateLimit-Cost is %q, want %q", got, c.cost)
	}
	got := receivedSettlement(t, e, f)
	if (got != nil) != c.early {
		t.Errorf("before the body the bridge is told %+v", got)
	}
	pieces := strings.Split(c.body, "|")
	for i, piece := range pieces {
		s.ResponseBody([]byte(piece), i == len(pieces)-1 && !c.cut && c.trailers == nil)
	}
	if c.trailers != nil {
		s.ResponseTrailers(c.trailers)
	}
	for _, done := range []func(){func() {}, s.Done} {
		done()
		if later := receivedSettlement(t, e, f); later != nil {
			if got != nil {
				t.Error("the bridge is told twice")
			}
			got = later
		}
		if !c.cut && (got == nil) != (c.want == nil) {
			t.Error("the bridge is told when the stream is done, and not at the end of the response")
		}
	}
	if c.want != nil {
		c.want.Receipt = "sealed"
	}
	if diff := cmp.Diff(c.want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestAClientThatDoesNotWaitForTheResponse: if a client leaves before the response begins, the cost
// of its request is the policy's setting named unread. The cost is reported with the next request
// or tick.
func TestAClientThatDoesNotWaitForTheResponse(t *testing.T) {
	want := &wire.Settle{Headers: []wire.Field{{Name: "X-Cost", Text: ">"}}}
	for name, then := range map[string]func(*fakeEnvoy, *Filter){
		"a tick":          func(_ *fakeEnvoy, f *Filter) { f.Tick() },
		"another request": func(_ *fakeEnvoy, f *Filter) { f.NewStream(2).RequestHeaders(get("/other")) },
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, costsPolicy(t, byHeader))
		s := admitted(t, e, f, 1, reservedAnswer(10), get("/api/x"))
		s.Done() // reset by the client
		then(e, f)
		got := receivedSettlement(t, e, f)
		if got != nil {
			got.Receipt = ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// TestABusyBridgeGetsTheSettlementAgain: if the bridge was too busy to read a call, or had no place
// for a settlement in it, the settlement is sent again with the next request or tick, and not at
// once.
func TestABusyBridgeGetsTheSettlementAgain(t *testing.T) {
	for _, busy := range []Reply{{Status: 503, Leases: wire.LeasingUsual}, replyWith(wire.Answer{Status: wire.StatusBusy})} {
		sendsSettlementAgain(t, busy)
	}
}

func sendsSettlementAgain(t *testing.T, busy Reply) {
	t.Helper()
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	s := admitted(t, e, f, 1, reservedAnswer(10), get("/api/x"))
	s.ResponseHeaders(okHeaders("200", "x-cost", "40"), true)
	for range 5 {
		f.Flush()
		c, _, items := e.check()
		c.answer(busy)
		if len(items) != 1 || items[0].Kind != wire.KindSettle || len(e.calls) > 0 {
			t.Fatalf("the bridge is told %+v, and %d calls are under way", items, len(e.calls))
		}
		f.Tick()
	}
	want := &wire.Settle{Receipt: "sealed", Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "40"}}}
	if diff := cmp.Diff(want, receivedSettlement(t, e, f)); diff != "" || e.counts[CounterUnsettled] != 0 {
		t.Errorf("-want +got\n%s, %d responses were not settled", diff, e.counts[CounterUnsettled])
	}
	if f.Tick(); receivedSettlement(t, e, f) != nil {
		t.Error("settled twice")
	}
}

// TestNothingToSettle: without a receipt, the reserved units remain charged.
func TestNothingToSettle(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	s := admitted(t, e, f, 2, admittedWith(90), get("/api/x"))
	s.ResponseHeaders(okHeaders("200", "x-cost", "4"), true)
	if got := receivedSettlement(t, e, f); got != nil {
		t.Errorf("without a receipt the bridge is told %+v", got)
	}
	s = admitted(t, e, f, 3, reservedAnswer(10), get("/api/x", ":method", "HEAD"))
	if fields := s.ResponseHeaders(okHeaders("200"), false); fieldOf(fields, "x-ratelimit-cost") != "25" || s.Listens() {
		t.Errorf("a body is expected of an answer to HEAD: %v", fields)
	}
}

// TestATunnelCostsUnread: if the answer to a CONNECT opens a tunnel, it has no body that could
// contain a cost. A CONNECT request that does not open a tunnel costs the default.
func TestATunnelCostsUnread(t *testing.T) {
	for status, want := range map[string]*wire.Settle{
		"200": {Status: 200, Numbers: []wire.Field{{Name: "usage.total_tokens", Text: ">"}}},
		"403": {Status: 403},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, anyPath(costsPolicy(t, byBody)))
		s := admitted(t, e, f, 1, reservedAnswer(10), [][2]string{{":method", "CONNECT"}, {":authority", "a.example:443"}})
		if s.ResponseHeaders(okHeaders(status), false); s.Listens() {
			t.Errorf("%s: the tunnel is read", status)
		}
		got := receivedSettlement(t, e, f)
		if got == nil {
			t.Fatalf("%s: nothing is settled when the tunnel opens", status)
		}
		if got.Receipt = ""; !cmp.Equal(want, got) {
			t.Errorf("%s: %s", status, cmp.Diff(want, got))
		}
	}
}

// TestNoRefundForAResponseOfEnvoy: a request that reached the upstream is refunded only by a
// response of the upstream. If Envoy could not accept that response, or did not wait for it, there
// is no refund, because the client may have caused that. If Envoy could not reach the upstream, the
// request is refunded, unless an earlier attempt may have reached the upstream.
func TestNoRefundForAResponseOfEnvoy(t *testing.T) {
	for _, c := range []struct {
		details  string
		attempts byte
		refunded bool
	}{
		{"response_timeout", 1, false},
		{"upstream_per_try_timeout", 1, false},
		{"upstream_max_stream_duration_reached", 1, false},
		{"stream_idle_timeout", 1, false},
		{"upstream_reset_before_response_started{protocol_error}", 1, false},
		{"upstream_reset_before_response_started{overflow}", 1, false},
		{"upstream_reset_before_response_started{connection_termination}", 1, false},
		{"response_payload_too_large", 1, false},
		{"via_upstream", 1, true},
		{"direct_response", 1, true},
		{"no_healthy_upstream", 1, true},
		{"upstream_reset_before_response_started{connection_timeout}", 1, true},
		{"upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}", 1, true},
		{"no_healthy_upstream", 0, true},
		{"no_healthy_upstream", 2, false},
		{"upstream_reset_before_response_started{connection_timeout}", 2, false},
		{"upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}", 2, false},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, costsPolicy(t, func(r *corepolicy.Rule) { r.RefundOn = []corepolicy.Statuses{{From: 500, To: 599}} }))
		s := admitted(t, e, f, 1, reservedAnswer(1), get("/api/x"))
		s.RequestEnds()
		e.properties["response.code_details"] = c.details
		e.properties["upstream.request_attempt_count"] = string([]byte{c.attempts, 0, 0, 0, 0, 0, 0, 0})
		s.ResponseHeaders(okHeaders("504"), true)
		s.Done()
		got := receivedSettlement(t, e, f)
		if got := got != nil && got.Status == 504; got != c.refunded {
			t.Errorf("%s, attempt %d: refunded %v, want %v", c.details, c.attempts, got, c.refunded)
		}
	}
}

// TestSettlementsAreBatchedWithRequests: settlements share calls with requests, and lost
// settlements are counted.
func TestSettlementsAreBatchedWithRequests(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	s := admitted(t, e, f, 1, reservedAnswer(10), get("/api/x"))
	f.NewStream(2).RequestHeaders(get("/api/y"))
	s.ResponseHeaders(okHeaders("200", "x-cost", "4"), true)
	f.Flush()
	c, _, items := e.check()
	if len(items) != 2 || items[0].Kind != wire.KindAsk || items[1].Kind != wire.KindSettle || len(e.calls) != 0 {
		t.Fatalf("%+v", items)
	}
	c.answer(replyWith(admittedWith(80), wire.Answer{Status: wire.StatusInvalid}))
	if e.counts[CounterUnsettled] != 1 || !slices.Equal(e.resumed, []uint32{1, 2}) {
		t.Errorf("%v, resumed %v", e.count(), e.resumed)
	}
	s = admitted(t, e, f, 3, reservedAnswer(10), get("/api/x"))
	s.ResponseHeaders(okHeaders("200", "x-cost", "4"), true)
	f.Flush()
	c, _, _ = e.check()
	c.answer(Reply{Status: 504})
	if e.counts[CounterUnsettled] != 2 {
		t.Errorf("%v", e.count())
	}
}

// TestSettlementsAreBounded: beyond the bound, settlements are dropped and counted, and the
// reserved units remain charged.
func TestSettlementsAreBounded(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush() // a call is in flight
	for range settlingMax + 3 {
		f.enqueueSettlement(&dueSettlement{receipt: "x"})
	}
	if e.counts[CounterUnsettled] != 3 || len(f.dues) > dueMax {
		t.Errorf("%d not told of, %d kept", e.counts[CounterUnsettled], len(f.dues))
	}
	told := 0
	for range settlingMax/batchItemsMax + 1 {
		c, _, items := e.check()
		told += len(items)
		c.answer(replyWith())
	}
	if told != settlingMax+1 || len(e.calls) != 0 || len(f.dues) > dueMax {
		t.Errorf("%d items, %d calls more, %d kept", told, len(e.calls), len(f.dues))
	}
}

// TestWhatTheBridgeAllowedWithoutTheStoreIsSettled: the bridge receives the cost, and the response
// to the client shows no limit.
func TestWhatTheBridgeAllowedWithoutTheStoreIsSettled(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	answer := reservedAnswer(10)
	answer.Results[0] = counter.Result{At: answer.Results[0].At, Local: true, Granted: 10}
	s := admitted(t, e, f, 1, answer, get("/api/x"))
	if fields := s.ResponseHeaders(okHeaders("200", "x-cost", "40"), true); len(fields) != 0 {
		t.Errorf("the client is told %v", fields)
	}
	want := &wire.Settle{Receipt: "sealed", Status: 200, Headers: []wire.Field{{Name: "X-Cost", Text: "40"}}}
	if diff := cmp.Diff(want, receivedSettlement(t, e, f)); diff != "" {
		t.Error(diff)
	}
	if e.counts[CounterDegraded] != 1 {
		t.Errorf("counted %v", e.count())
	}
}
