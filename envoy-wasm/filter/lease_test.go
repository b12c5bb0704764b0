// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// shopLeased returns the shop's policy with lease: auto.
func shopLeased(t *testing.T, limits ...string) corepolicy.Policy {
	t.Helper()
	p := shopPolicy(t, limits[0])
	p.Lease = corepolicy.LeaseAuto
	for _, text := range limits[1:] {
		l, err := counter.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		p.Rules[0].Limits = append(p.Rules[0].Limits, l)
	}
	return p
}

// TestAHotCounterIsDecidedHere: a busy counter is decided without calls and never exceeded, and
// unused units are returned.
func TestAHotCounterIsDecidedHere(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	const demand = 1500
	if n := b.requests(demand, counter.Millisecond); n != demand {
		t.Fatalf("%d admitted", n)
	}
	if b.calls > demand/10 || b.counts[CounterLeased] < demand*9/10 {
		t.Errorf("%d calls, and %d of %d from the hand", b.calls, b.counts[CounterLeased], demand)
	}
	b.passTime(counter.Second)
	if b.left[0] != 2000-demand {
		t.Errorf("%d are left, want %d: what was not used is back", b.left[0], 2000-demand)
	}
	if got := b.requests(2000, 100); got != 2000-demand {
		t.Errorf("%d more admitted, want %d", got, 2000-demand)
	}
	if b.counts[CounterRemembered] < 1000 {
		t.Errorf("only %d were refused without a call", b.counts[CounterRemembered])
	}
	if b.kinds[wire.KindFetch] == 0 || b.kinds[wire.KindLease] == 0 || b.kinds[wire.KindRefund] == 0 {
		t.Errorf("asked %v", b.kinds)
	}
	t.Logf("%d calls, items %v", b.calls, b.kinds)
}

// TestHeadersOfLeasedDecisions: decisions from leased units have the headers of the limit. The
// remaining units include the held units.
func TestHeadersOfLeasedDecisions(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.requests(300, counter.Millisecond)
	s := b.f.NewStream(9999)
	if s.RequestHeaders(get("/api/x")) != Continue {
		t.Fatal("it waits")
	}
	fields := map[string]string{}
	for _, field := range s.ResponseHeaders(okHeaders("200"), true) {
		fields[field[0]] = field[1]
	}
	want := map[string]string{"x-ratelimit-limit": "2000", "x-ratelimit-remaining": "1699", "ratelimit-policy": `"api";q=2000;w=60`,
		"ratelimit": fields["ratelimit"], "x-ratelimit-reset": fields["x-ratelimit-reset"]}
	if !maps.Equal(fields, want) {
		t.Errorf("%v", fields)
	}
}

// TestColdCountersCallTheBridge: slow traffic causes one call per request, and no units are leased.
func TestColdCountersCallTheBridge(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	if b.requests(40, 100*counter.Millisecond) != 40 || b.left[0] != 1960 || b.counts[CounterLeased] != 0 || b.calls != 40 {
		t.Errorf("%d left, %d calls, counted %v", b.left[0], b.calls, b.count())
	}
}

// TestSeveralLimits: a request is decided from leased units only if all its limits are leased. If
// one of the limits cannot be leased, no units of the other limits are held.
func TestSeveralLimits(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window", "9000/1h fixed_window"), 2000, 9000)
	if n := b.requests(1000, counter.Millisecond); n != 1000 || b.counts[CounterLeased] < 800 {
		t.Errorf("%d admitted, %v", n, b.count())
	}
	b = newLedger(t, shopLeased(t, "2000/1m fixed_window", "9000/1h sliding_log"), 2000, 9000)
	if n := b.requests(200, counter.Millisecond); n != 200 || b.counts[CounterLeased] != 0 || b.left[0] != 1800 || b.calls != 200 {
		t.Errorf("%d admitted, %d left, %v", n, b.left[0], b.count())
	}
}

// TestDenialsAreRemembered: denials are remembered for up to a second, even for limits without
// leases, but not if the store must record each request.
func TestDenialsAreRemembered(t *testing.T) {
	b := newLedger(t, shopPolicy(t, "10/1m fixed_window"), 10)
	if n := b.requests(1000, 5*counter.Millisecond); n != 10 || b.calls > 10+7 {
		t.Errorf("%d admitted with %d calls", n, b.calls)
	}
	b = newLedger(t, shopPolicy(t, "10/1m fixed_window"), 10)
	if b.exact = true; b.requests(100, 5*counter.Millisecond) != 10 || b.calls != 100 {
		t.Errorf("a bridge that wants to be asked has %d calls for 100 requests", b.calls)
	}
	for name, change := range map[string]func(*corepolicy.Policy){
		"log_only": func(p *corepolicy.Policy) { p.Rules[0].Action = corepolicy.ActionLogOnly },
		"penalty": func(p *corepolicy.Policy) {
			p.Penalty = &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1}}
		},
		"throttle": func(p *corepolicy.Policy) {
			p.Rules[0].Action, p.Rules[0].Throttle = corepolicy.ActionThrottle, &corepolicy.Throttle{MaxDelay: counter.Millisecond, MaxWaiting: 1}
		},
		// In this case, the shard that a request will use is unknown.
		"shards": func(p *corepolicy.Policy) { p.Rules[0].Shards = 5 },
	} {
		p := shopLeased(t, "10/1m fixed_window")
		change(&p)
		b := newLedger(t, p, 10)
		if name == "penalty" {
			b.left = []int64{1 << 40, 10}
		}
		if b.requests(50, counter.Millisecond); b.calls != 50 || b.counts[CounterRemembered]+b.counts[CounterLeased] != 0 {
			t.Errorf("%s: %d calls, %v", name, b.calls, b.count())
		}
	}
}

// TestABridgeThatKnowsNoLeases: a bridge that does not support leases gets no calls about leases.
// No request fails when such a bridge replaces another one.
func TestABridgeThatKnowsNoLeases(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.deaf = true
	if n := b.requests(300, counter.Millisecond); n != 300 || b.calls != 300 || b.kinds[wire.KindAsk] != 300 || b.counts[CounterDegraded] != 0 {
		t.Errorf("%d admitted, asked %v, counted %v", n, b.kinds, b.count())
	}
	b.deaf = false
	b.requests(300, counter.Millisecond)
	if b.counts[CounterLeased] == 0 {
		t.Errorf("not leased from one that knows them: %v", b.count())
	}
	b.deaf = true
	b.requests(300, counter.Millisecond)
	if b.counts[CounterDegraded]+b.counts[CounterUnanswered] != 0 {
		t.Errorf("counted %v", b.count())
	}
}

// TestSettlementsReachABridgeThatKnowsNoLeases: if an older bridge answers a call about leases with
// 400, the filter sends the items again, and each settlement arrives once.
func TestSettlementsReachABridgeThatKnowsNoLeases(t *testing.T) {
	for _, late := range []bool{false, true} {
		b := newLedger(t, shopLeased(t, "200000/1m fixed_window"), 200000)
		b.requests(300, counter.Millisecond)
		b.mixed, b.late = true, late
		var want []string
		for i := range 3000 {
			want = append(want, strconv.Itoa(i))
			b.f.calls.settling = append(b.f.calls.settling, &dueSettlement{receipt: want[i]})
			b.requests(1, counter.Millisecond)
		}
		b.wakes++
		b.serve()
		if b.denied == 0 {
			t.Fatal("no call about leases was answered 400 that had settlements")
		}
		slices.SortFunc(b.settled, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		if !slices.Equal(b.settled, want) || b.counts[CounterUnsettled] != 0 {
			t.Errorf("given up before: %v: settled %q of 3000; counted %v", late, b.settled, b.count())
		}
	}
}

// TestALostGrantIsNeverUsed: no units are held after a failed call or an answer for another client.
func TestALostGrantIsNeverUsed(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.requests(200, counter.Millisecond)
	b.verdict = true
	leased := b.counts[CounterLeased]
	b.requests(400, counter.Millisecond)
	if in := b.counts[CounterLeased] - leased; in > 110 {
		t.Errorf("%d requests were admitted from the hand, more than was in it", in)
	}
	b.verdict = false
	b.refuses = errNo
	b.now += 2 * counter.Second // denials are forgotten
	admitted := b.counts[CounterAllowed]
	b.requests(400, counter.Millisecond)
	if b.counts[CounterAllowed] != admitted || b.counts[CounterDegraded]+b.counts[CounterSpent] != 400 {
		t.Errorf("without the bridge, and with nothing in hand: %v", b.count())
	}
}

// TestTheHandComesBeforeOnError: when the bridge is down, held units are used first.
func TestTheHandComesBeforeOnError(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.requests(300, counter.Millisecond)
	held := b.f.leases.all[0].counter.Held(b.f.elapsedTime())
	b.refuses = errNo
	leased := b.counts[CounterLeased]
	b.requests(300, 10)
	if in := b.counts[CounterLeased] - leased; held == 0 || int64(in) != held || b.counts[CounterDegraded] == 0 {
		t.Errorf("%d were in hand, and %d are used: %v", held, in, b.count())
	}
}

// TestTheClockOfLeases: after a clock jump, the age of leases is unknown, so held units are not
// used.
func TestTheClockOfLeases(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.requests(300, counter.Millisecond)
	leased := b.counts[CounterLeased]
	b.wrong += counter.Hour
	s := b.f.NewStream(9999)
	if s.RequestHeaders(get("/api/x")) != Pause || b.counts[CounterLeased] != leased {
		t.Error("decided from units of which nobody knows how old they are")
	}
	b.serve()
	b.passTime(counter.Second)
	if b.left[0] != 2000-301 {
		t.Errorf("%d left, want 1699: they are given back", b.left[0])
	}
	if b.requests(300, counter.Millisecond); b.counts[CounterLeased] == leased {
		t.Error("never leased again")
	}
	b.now += counter.Hour // afterwards both clocks move forward, and the held units are too old
	leased = b.counts[CounterLeased]
	if b.request(); b.counts[CounterLeased] != leased {
		t.Error("used an hour later")
	}
}

// TestCountersAreBounded: beyond the bound, requests are decided by the bridge, and held units
// remain.
func TestCountersAreBounded(t *testing.T) {
	p := shopLeased(t, "2000/1m fixed_window")
	b := newLedger(t, p, 1<<40)
	for i := range 3 * heldMax {
		b.properties["source.address"] = "10." + strconv.Itoa(i>>16) + "." + strconv.Itoa(i>>8&255) + "." + strconv.Itoa(i&255) + ":1"
		if !b.request() {
			t.Fatal("refused")
		}
	}
	if n := len(b.f.leases.all); n != heldMax || len(b.f.leases.byKey) != heldMax {
		t.Errorf("%d counters are held, under %d names", n, len(b.f.leases.byKey))
	}
	for _, h := range b.f.leases.all {
		if h.pins != 0 {
			t.Fatalf("%+v is pinned by no call", h)
		}
	}
}

// TestFromTheHandWithoutAllocating: a decision from leased units allocates no more than any other
// decision.
func TestFromTheHandWithoutAllocating(t *testing.T) {
	host := &quickHost{now: counter.Second}
	serve := hotRequest(t, host)
	if n := testing.AllocsPerRun(200, serve); n > 4 {
		t.Errorf("%v allocations", n)
	} else {
		t.Logf("%v allocations", n)
	}
}

// hotRequest returns a function that runs a request that is decided from leased units.
func hotRequest(t testing.TB, host *quickHost) func() {
	t.Helper()
	limit, err := counter.ParseLimit("1000000000/1h fixed_window")
	if err != nil {
		t.Fatal(err)
	}
	p := corepolicy.Policy{Name: "shop", Lease: corepolicy.LeaseAuto, Rules: []corepolicy.Rule{{Name: "api", Limits: []counter.Limit{limit}}}}
	f, err := New(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Tick()
	host.answer(Reply{Status: 200, ETag: "v1", Body: compact.AppendPolicy(nil, &p, "v1")})
	f.leases.reads = true
	request := get("/api/orders/4711?page=2", "user-agent", "curl/8.0", "accept", "*/*", "x-request-id", "b28e7fe0-9646-4934",
		"x-forwarded-for", "192.0.2.7", "x-forwarded-proto", "http", "authorization", "Bearer abc")
	response := okHeaders("200", "content-type", "application/json", "content-length", "20")
	s := f.NewStream(1)
	s.RequestHeaders(request)
	h := f.leases.all[0]
	c, l := &h.counter, &limit
	s.Done()
	c.CancelCall()
	// fill grants a practically endless supply of units.
	fill := func() {
		a, ok := c.Ask(f.elapsedTime(), l, 1)
		if !ok {
			t.Fatal("not asked")
		}
		c.Granted(f.elapsedTime(), &a, &counter.Result{At: host.now, Granted: 1 << 30, Remaining: 1 << 20, Reset: counter.Hour, Receipt: 7})
	}
	fill()
	return func() {
		host.now += burstSpan
		s := f.NewStream(1)
		if s.RequestHeaders(request) != Continue {
			t.Fatal("not from the hand")
		}
		if len(s.ResponseHeaders(response, false)) != 5 {
			t.Fatal("not told")
		}
		s.Done()
	}
}

// BenchmarkFromTheHand measures what a request costs the filter if units in hand decide it, without
// a call to the bridge.
func BenchmarkFromTheHand(b *testing.B) {
	serve := hotRequest(b, &quickHost{now: counter.Second})
	b.ReportAllocs()
	for b.Loop() {
		serve()
	}
}
