// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// policyByHeaders returns a policy that counts by header fields.
func policyByHeaders(t *testing.T, names ...string) corepolicy.Policy {
	t.Helper()
	p := shopPolicy(t, "10/1m")
	for _, name := range names {
		p.Rules[0].Per = append(p.Rules[0].Per, corepolicy.Dimension{Kind: corepolicy.PerHeader, Name: name})
	}
	return p
}

// TestCallsAreBoundedInBytes: no call is larger than the bridge accepts, and a long item gets its
// own call.
func TestCallsAreBoundedInBytes(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, anyPath(shopPolicy(t, "10/1m")))
	lengths := []int{100, 64 << 10, 64 << 10, 64 << 10, 64 << 10, 64 << 10, 900 << 10, 100, 100}
	for id, n := range lengths {
		if f.NewStream(uint32(id)).RequestHeaders(get("/"+strings.Repeat("a", n))) != Pause {
			t.Fatalf("%d: not asked about", id)
		}
	}
	f.Flush()
	var batches []int
	for len(e.calls) > 0 {
		c, _, items := e.check()
		batches = append(batches, len(items))
		if len(c.Body) > wire.CallBytesMax || len(items) > 1 && len(c.Body) > batchBytesMax {
			t.Errorf("a call of %d bytes with %d questions", len(c.Body), len(items))
		}
		c.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(1)}, len(items))...))
		f.endTurns()
	}
	if !slices.Equal(batches, []int{4, 2, 1, 2}) || len(e.resumed) != len(lengths) {
		t.Errorf("calls of %v questions, resumed %v", batches, e.resumed)
	}
}

// TestTooLargeRequestsAreDenied: a request that has limits is denied if it is too large for a
// question. Otherwise, under on_error: allow, a long header would bypass the limits. A request
// without limits passes.
func TestTooLargeRequestsAreDenied(t *testing.T) {
	long := strings.Repeat("a", askBytesMax)
	e := newEnvoy(t)
	f := withPolicy(t, e, policyByHeaders(t, "X-A"))
	s := f.NewStream(1)
	if s.RequestHeaders(get("/api/x", "x-a", long)) != Pause || e.responses[1].Status != 431 || s.Responds() {
		t.Errorf("%+v", e.responses)
	}
	if f.NewStream(2).RequestHeaders(get("/other", "x-a", long)) != Continue {
		t.Error("a request that no limit is for is refused")
	}
	if f.NewStream(3).RequestHeaders(get("/api/x", "x-b", long)) != Pause || e.responses[3].Status != 0 {
		t.Error("a header that nobody reads counts")
	}
	equalCounts(t, e, map[string]int{"oversized": 1, "denied": 1, "allowed": 1, "policy_loaded": 1})
	e = newEnvoy(t)
	f = withPolicy(t, e, anyPath(shopPolicy(t, "10/1m")))
	if f.NewStream(1).RequestHeaders(get("/"+long)) != Pause || e.responses[1].Status != 431 {
		t.Errorf("a path that nobody compares, and too long for a call: %+v", e.responses)
	}
	equalCounts(t, e, map[string]int{"oversized": 1, "denied": 1, "policy_loaded": 1})
}

// TestManyLinesAreJoinedAtOnce: joining header lines takes linear time and keeps their order.
func TestManyLinesAreJoinedAtOnce(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, policyByHeaders(t, "X-A", "X-B"))
	allocated := func(lines int) uint64 {
		headers := get("/api/x")
		for i := range lines {
			headers = append(headers, [2]string{"x-a", strconv.Itoa(i%10) + strings.Repeat("a", 9)}, [2]string{"x-b", "b"})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := f.newAsking()
		a.attrs.take(e, f.policy, headers, false)
		runtime.ReadMemStats(&after)
		if text := a.attrs.Ask.Headers[0].Text; !strings.HasPrefix(text, "0aaaaaaaaa, 1aaaaaaaaa, 2a") || len(text) != 12*lines-2 {
			t.Fatalf("%d lines are joined to %d bytes, %.40q", lines, len(text), text)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	if once, twice := allocated(2000), allocated(4000); twice > 3*once {
		t.Errorf("2,000 lines take %d bytes, 4,000 take %d", once, twice)
	}
}

// TestCallsAreBoundedInQuestions: the items of a call and the waiting requests are bounded.
func TestCallsAreBoundedInQuestions(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	for id := range uint32(waitingMax) {
		e.properties["source.address"] = "10.0." + strconv.Itoa(int(id>>8)) + "." + strconv.Itoa(int(id&255)) + ":4711"
		f.NewStream(id).RequestHeaders(get("/api/x"))
		// advance the clock, so that no request waits for the end of a turn
		e.now += burstSpan / burstMin
	}
	if f.NewStream(waitingMax).RequestHeaders(get("/api/x")) != Pause || e.counts[CounterFull] != 1 || e.responses[waitingMax].Status != 503 {
		t.Errorf("one more waits: %v", e.count())
	}
	f.Flush()
	for asked := 0; asked < waitingMax; asked += batchItemsMax {
		c, _, items := e.check()
		if len(items) != batchItemsMax {
			t.Fatalf("%d questions", len(items))
		}
		c.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(1)}, len(items))...))
		f.endTurns()
	}
	if len(e.resumed) != waitingMax || len(f.idle) > askingMax {
		t.Errorf("%d resumed, %d kept", len(e.resumed), len(f.idle))
	}
}

// TestQuestionsLeaveRoomForSettlements: a settlement goes into the next call, even if there are
// more questions, or longer ones, than a call can hold.
func TestQuestionsLeaveRoomForSettlements(t *testing.T) {
	for name, path := range map[string]string{"many questions": "/api/x", "long questions": "/api/" + strings.Repeat("x", 60_000)} {
		e := newEnvoy(t)
		f := withPolicy(t, e, costsPolicy(t, byHeader))
		admitted(t, e, f, 1, reservedAnswer(10), get("/api/x")).ResponseHeaders(okHeaders("200", "x-cost", "40"), true)
		for id := range uint32(2 * batchItemsMax) {
			e.properties["source.address"] = "10.0." + strconv.Itoa(int(id>>8)) + "." + strconv.Itoa(int(id&255)) + ":4711"
			f.NewStream(10 + id).RequestHeaders(get(path))
			e.now += burstSpan / burstMin
		}
		f.Flush()
		_, _, items := e.check()
		settled := 0
		for i := range items {
			if items[i].Kind == wire.KindSettle {
				settled++
			}
		}
		if settled != 1 {
			t.Errorf("%s: %d settlements in a call of %d items, want 1", name, settled, len(items))
		}
	}
}

// TestAPolicyThatReadsTooMuchIsRejected: a policy with more inputs than a call can carry is
// rejected.
func TestAPolicyThatReadsTooMuchIsRejected(t *testing.T) {
	for n, want := range map[int]int{wire.ValuesMax: 0, wire.ValuesMax + 1: 1} {
		p := shopPolicy(t, "10/1m")
		for i := range n {
			p.Rules[0].Cost = append(p.Rules[0].Cost, corepolicy.Cost{N: 2,
				Match: corepolicy.Match{Header: []corepolicy.HeaderMatch{{Name: "X-" + strconv.Itoa(i), Values: []string{"a"}}}}})
		}
		e := newEnvoy(t)
		f, err := New(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		f.Tick()
		e.calls[0].answer(Reply{Status: 200, ETag: "x", Body: compact.AppendPolicy(nil, &p, "x")})
		if e.counts[CounterPolicyRejected] != want {
			t.Errorf("%d headers: %v %q", n, e.count(), e.warnings)
		}
	}
}

// TestDecidedRequestsKeepNoHeaders: a decided request does not keep its headers in memory.
func TestDecidedRequestsKeepNoHeaders(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, withKeys(t))
	s := admitted(t, e, f, 1, withVerdict(admittedWith(1), corepolicy.CredentialUnknown, counter.Minute), get("/api/x", "x-api-key", "k"))
	if s.asking != nil || len(f.idle) != 1 {
		t.Fatal("not let go of")
	}
	a := f.idle[0]
	for _, v := range a.attrs.Ask.Headers[:cap(a.attrs.Ask.Headers)] {
		if v != (wire.Value{}) {
			t.Errorf("%q is kept", v.Text)
		}
	}
	if a.attrs.Ask.Path != "" || a.policy != nil {
		t.Error("the path or the policy is kept")
	}
}

// TestWaitingHeadersAreBounded: the headers of waiting requests take at most heldBytesMax, and are
// released when the requests are decided or have ended.
func TestWaitingHeadersAreBounded(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	long := get("/api/x", "x-unread", strings.Repeat("a", 1<<20))
	var streams []*Stream
	for e.counts[CounterFull] == 0 {
		s := f.NewStream(uint32(len(streams)))
		s.RequestHeaders(long)
		streams = append(streams, s)
	}
	if n := len(streams); n != heldBytesMax>>20 || f.calls.held > heldBytesMax {
		t.Errorf("%d wait, with %d bytes", n-1, f.calls.held)
	}
	streams[0].Done()
	e.panics = "Count"
	e.timeOut(f)
	e.timeOut(f)
	e.timeOut(f)
	for f.calls.sources.queued > 0 {
		f.Flush()
	}
	if f.endTurns(); f.calls.held != 0 || len(e.resumed)+len(e.responses) != len(streams)-1 {
		t.Errorf("%d bytes are held when nobody waits; resumed %d, answered %d of %d", f.calls.held, len(e.resumed), len(e.responses), len(streams))
	}
}
