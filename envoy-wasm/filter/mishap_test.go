// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/lease"
)

// TestAClockThatGoesBackWhileThrottled: a throttled request is decided in time even if the clock
// goes back by an hour between its two calls.
func TestAClockThatGoesBackWhileThrottled(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	e.now -= counter.Hour
	first.answer(replyWith(denialUntil()))
	if second, _, _ := e.check(); second.TimeoutMillis != 5000 {
		t.Errorf("the second call has %d ms", second.TimeoutMillis)
	}
	if e.now += 3000 * counter.Millisecond; s.state != throttleQueued {
		t.Fatal("it does not stand in line")
	}
	if f.Tick(); s.state == throttleQueued {
		t.Error("it stands there still")
	}
}

// TestAWakeThatFlushesAtOnce: a host can call Flush within Wake, as the emulator does. If the call
// cannot be made, the request is decided within Wake.
func TestAWakeThatFlushesAtOnce(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	e.wakesAt, e.refuses = f.Flush, errNo
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	if e.counts[CounterPanic] != 0 || !slices.Equal(e.resumed, []uint32{1}) || f.calls.held != 0 {
		t.Errorf("counted %v, resumed %v, %d bytes are held; %q", e.count(), e.resumed, f.calls.held, e.warnings)
	}
}

// TestACallUnderWayWhenTheClockGoesBack: units that such a call grants are not used.
func TestACallUnderWayWhenTheClockGoesBack(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	for len(b.tokens) == 0 && b.next < 100 { // requests are sent until the first grant, whose answer is delayed
		b.next++
		b.f.NewStream(b.next).RequestHeaders(get("/api/x"))
		b.f.Flush()
		c, reader, items := b.check()
		answer := b.answer(&items[0])
		body := wire.AppendAnswer(wire.AppendReply(nil), &answer)
		if reader.Leasing {
			body = wire.AppendLeasingAnswer(wire.AppendLeasingReply(nil), &answer)
			b.wrong += counter.Hour
		}
		b.now += counter.Millisecond
		c.answer(Reply{Status: 200, Leases: wire.LeasingUsual, Body: body})
	}
	if len(b.tokens) == 0 {
		t.Fatal("nothing was granted")
	}
	leased := b.counts[CounterLeased]
	if s := b.f.NewStream(9999); s.RequestHeaders(get("/api/x")) != Pause || b.counts[CounterLeased] != leased {
		t.Error("decided from units of which nobody knows how old they are")
	}
	b.serve()
	b.passTime(counter.Second)
	if n := 2000 - int64(b.next) - 1; b.left[0] != n {
		t.Errorf("%d left, want %d", b.left[0], n)
	}
}

// TestBridgesOfBothKinds: if one of two bridges does not support leases and answers every other
// call, on_error still does not decide any request.
func TestBridgesOfBothKinds(t *testing.T) {
	b := newLedger(t, shopLeased(t, "200000/1m fixed_window"), 200000)
	for range 2000 {
		b.deaf = !b.deaf
		b.requests(1, counter.Millisecond)
	}
	if b.counts[CounterDegraded] != 0 || b.counts[CounterAllowed] != 2000 {
		t.Errorf("counted %v", b.count())
	}
	before := b.calls
	b.deaf = true
	if b.requests(100, counter.Millisecond); b.calls-before > 101 {
		t.Errorf("%d calls for 100 requests", b.calls-before)
	}
	b.deaf = false
	b.requests(11000, counter.Millisecond)
	if b.counts[CounterLeased] < 500 || b.counts[CounterDegraded] != 0 {
		t.Errorf("once all bridges know leases: %v", b.count())
	}
}

// TestRequestsDoNotWaitBehindRefunds: a request is part of the next call, however long the request
// is and however many refunds wait.
func TestRequestsDoNotWaitBehindRefunds(t *testing.T) {
	for _, path := range []string{"/api/x", "/api/" + strings.Repeat("x", 250<<10)} {
		e := newEnvoy(t)
		f := withPolicy(t, e, anyPath(shopLeased(t, "2000/1m fixed_window")))
		f.leases.reads = true
		for range extrasMax {
			f.enqueueExtra(new(extra), wire.AppendRefund(nil, &wire.Refund{Token: strings.Repeat("t", 300), Units: 1}))
		}
		f.NewStream(1).RequestHeaders(get(path))
		f.NewStream(2).RequestHeaders(get("/api/x"))
		f.Flush()
		c, _, items := e.check()
		asked := slices.DeleteFunc(items, func(i wire.Item) bool { return i.Kind == wire.KindRefund })
		if len(asked) == 0 || asked[0].Ask.Path != path {
			t.Fatalf("%d requests are asked about, beside %d items", len(asked), len(items)-len(asked))
		}
		c.answer(Reply{Status: 504})
		for n := 0; len(f.leases.extras) > 0; n++ {
			if len(e.calls) == 0 || n > 100 {
				t.Fatal("what goes back is not sent")
			}
			c, _, _ = e.check()
			c.answer(Reply{Status: 504})
		}
	}
}

// anyPath removes the paths from a policy's matches, so that paths may have any length.
func anyPath(p corepolicy.Policy) corepolicy.Policy {
	for i := range p.Rules {
		p.Rules[i].Match.Path = nil
	}
	return p
}

// TestUnitsOfAFormerPolicy: a question for units in advance is dropped if the policy has changed
// before it is sent. The call under the new policy has only the question of the request.
func TestUnitsOfAFormerPolicy(t *testing.T) {
	e := newEnvoy(t)
	p := shopLeased(t, "2000/1m fixed_window")
	f := withPolicy(t, e, p)
	f.leases.reads = true
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	wants := s.asking.wants
	if s.asking.wants = nil; len(wants) != 1 {
		t.Fatalf("%d counters are asked", len(wants))
	}
	f.enqueueExtra(&extra{version: "v1", wants: wants}, wire.AppendAsk(nil, wire.KindFetch, &wire.Ask{}, nil))
	s.Done()
	f.poll.due = 0
	f.pollPolicy()
	e.publish(f, p, "v2")
	f.NewStream(2).RequestHeaders(get("/api/x"))
	f.Flush()
	c, reader, items := e.check()
	if reader.Version != "v2" || len(items) != 1 || len(f.leases.extras) != 0 || f.leases.all[0].pins != 0 {
		t.Errorf("%s: %d items, %d wait still, %d pins", reader.Version, len(items), len(f.leases.extras), f.leases.all[0].pins)
	}
	c.answer(replyWith(admittedWith(1)))
}

// TestLongRequestsFetchNothing: no units are taken in advance for long requests, because one such
// request for each counter would be kept in memory.
func TestLongRequestsFetchNothing(t *testing.T) {
	b := newLedger(t, anyPath(shopLeased(t, "20000/1m fixed_window")), 20000)
	b.path = "/api/" + strings.Repeat("x", 2*fetchBytesMax)
	if n := b.requests(300, counter.Millisecond); n != 300 || b.counts[CounterLeased] == 0 || b.kinds[wire.KindFetch] != 0 {
		t.Errorf("%d admitted, asked %v, counted %v", n, b.kinds, b.count())
	}
}

// TestAPanicAboutLeasesLosesNoRequest: no request is lost if the code for leases panics, or if the
// host panics while a call is made.
func TestAPanicAboutLeasesLosesNoRequest(t *testing.T) {
	for _, flush := range []bool{false, true} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"))
		// without an entry, the clock is not read
		f.leases.holdLease(&counter.Check{Key: []byte("a client that was refused")}, true)
		for id := uint32(1); id <= 3; id++ {
			f.NewStream(id).RequestHeaders(get("/api/x"))
		}
		if flush {
			e.panics = "Elapsed"
			f.Flush()
		}
		f.Flush()
		c, _, _ := e.check()
		if !flush {
			e.panics = "Elapsed"
		}
		c.answer(replyWith(admittedWith(9), admittedWith(8), admittedWith(7)))
		if !slices.Equal(e.resumed, []uint32{1, 2, 3}) || e.counts[CounterPanic] != 1 || e.counts[CounterDegraded] != 0 {
			t.Errorf("resumed %v, counted %v", e.resumed, e.count())
		}
	}
}

// TestAKeyThatWasTakenBack: a revoked key is accepted for at most a second, even if other clients
// keep the lease in use.
func TestAKeyThatWasTakenBack(t *testing.T) {
	p := shopLeased(t, "200000/1m fixed_window")
	p.Identify = []corepolicy.Identify{{Kind: corepolicy.IdentifyAPIKey}, {}}
	p.Rules[0].PerNone = true
	e := newEnvoy(t)
	f := withPolicy(t, e, p)
	f.leases.reads = true
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x", "x-api-key", "k"))
	f.Flush()
	c, _, _ := e.check()
	reply := replyWith(withVerdict(admittedWith(100), corepolicy.CredentialValid, 10*counter.Second))
	reply.Leases = wire.LeasingUsual
	c.answer(reply)
	s.Done()
	fill := func() {
		plain := f.NewStream(7)
		if plain.RequestHeaders(get("/api/x")) == Continue {
			return
		}
		w := &plain.asking.wants[0]
		w.held.counter.Granted(f.elapsedTime(), &w.asking, &counter.Result{At: e.now, Granted: 1000, Remaining: 1000, Reset: counter.Minute, Receipt: 7})
		plain.Done()
	}
	fill()
	request := func(id uint32) bool {
		s := f.NewStream(id)
		defer s.Done()
		return s.RequestHeaders(get("/api/x", "x-api-key", "k")) == Continue
	}
	if !request(2) {
		t.Fatal("not admitted from the hand")
	}
	e.now += trustedFor
	fill()
	s = f.NewStream(3)
	if s.RequestHeaders(get("/api/x", "x-api-key", "k")) == Continue {
		t.Fatal("admitted from the hand by what was heard a second ago")
	}
	f.Flush()
	c, _, items := e.check()
	if items[0].Ask.Known != 0 {
		t.Error("the bridge is told that the key is known")
	}
	c.answer(reply)
	if s.Done(); !request(4) {
		t.Error("not admitted from the hand by what was heard just now")
	}
}

// TestReceiptsOfOneInstant: if the clock of a bucket goes back a little, everything is charged at
// one instant. Units that are refunded with the smallest age must not use a receipt with a greater
// age. The units of such receipts are not refunded, but the bucket refills.
func TestReceiptsOfOneInstant(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	f.leases.reads = true
	h := &heldLease{}
	h.keep(sealedReceipt{receipt: 77, units: 5, age: 20, text: "greater"})
	h.keep(sealedReceipt{receipt: 77, units: 5, age: 10, text: "least"})
	h.keep(sealedReceipt{receipt: 78, units: 5, age: 10, text: "another"})
	f.gather(h, []lease.Refund{{Units: 3, Receipt: 77, Age: 20}, {Units: 4, Receipt: 77, Age: 10}}, 1)
	f.Flush()
	_, _, items := e.check()
	if len(items) != 1 || items[0].Refund != (wire.Refund{Token: "least", Units: 5}) {
		t.Errorf("%+v go back", items)
	}
}

// TestReceiptsKeepNoReplies: a receipt is copied from the reply, so that the reply can be freed.
func TestReceiptsKeepNoReplies(t *testing.T) {
	const size = 512 << 10
	e := newEnvoy(t)
	f := withPolicy(t, e, shopLeased(t, "2000/1m fixed_window"))
	answers := []wire.Answer{{Results: admittedWith(9).Results, Leases: []wire.Lease{{Granted: 5, Receipt: 77, Token: "sealed"}}},
		{Receipt: strings.Repeat("r", size)}}
	body := wire.AppendLeasingReply(nil)
	for i := range answers {
		body = wire.AppendLeasingAnswer(body, &answers[i])
	}
	check := &f.policy.planOf(t).Checks()[0]
	h := f.leases.holdLease(check, true)
	before := heap()
	for range tokensMax {
		reply, err := wire.ReadReply(body)
		if err != nil {
			t.Fatal(err)
		}
		var answer wire.Answer
		if ok, err := reply.Next(&answer); !ok || err != nil {
			t.Fatal(err)
		}
		f.takeGranted(&wantedUnits{held: h, limit: check.Limit}, &answer.Results[0], 0, answer.Leases)
	}
	if after := heap(); len(h.tokens) != tokensMax || after > before+4*size {
		t.Errorf("%d receipts take %d bytes", len(h.tokens), after-before)
	}
	runtime.KeepAlive(f)
}

// policy.planOf returns the plan of a request for /api/x under the policy.
func (p *policy) planOf(t *testing.T) *core.Plan {
	t.Helper()
	var a askingData
	a.attrs.Ask = wire.Ask{Path: "/api/x", Method: "GET", Host: "example.com", Peer: netip.MustParseAddr("192.0.2.7")}
	a.attrs.View = wire.View{Ask: &a.attrs.Ask, Inputs: &p.reads.Inputs}
	a.plan.Add(p.ruleset, &a.attrs.View)
	return &a.plan
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
