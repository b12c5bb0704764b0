// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// sendFlood sends n requests of one client at once and ends the turn.
func (e *fakeEnvoy) sendFlood(f *Filter, from, n uint32, path string, fields ...string) {
	for id := from; id < from+n; id++ {
		if f.NewStream(id).RequestHeaders(get(path, fields...)) == Continue {
			e.resumed = append(e.resumed, id)
		}
	}
	e.settleTurns(f)
}

// settleTurns ends turns until nothing more happens without an answer from the bridge.
func (e *fakeEnvoy) settleTurns(f *Filter) {
	for wakes := -1; wakes != e.wakes; {
		wakes = e.wakes
		f.Flush()
	}
}

// answerAll answers all calls like a bridge with the given number of units, and returns the number
// of items.
func (e *fakeEnvoy) answerAll(f *Filter, units *int64) (asked int) {
	for len(e.calls) > 0 {
		c, _, items := e.check()
		asked += len(items)
		var answers []wire.Answer
		for range items {
			if *units--; *units < 0 {
				*units = 0
				answers = append(answers, denialOver())
				continue
			}
			answers = append(answers, admittedWith(*units))
		}
		c.answer(replyWith(answers...))
		e.settleTurns(f)
	}
	return asked
}

// TestABurstOfOneClient: of any number of simultaneous requests, exactly the limit is admitted and
// the rest are denied with 429. The number of questions to the bridge exceeds the number of
// admitted requests by at most waveMax.
func TestABurstOfOneClient(t *testing.T) {
	for _, n := range []uint32{1, 5, 6, 100, 2000, 10000} {
		for _, limit := range []int64{1, 5, 300} {
			e := newEnvoy(t)
			f := withPolicy(t, e, shopPolicy(t, strconv.FormatInt(limit, 10)+"/1h fixed_window"))
			units := limit
			e.sendFlood(f, 0, n, "/api/x")
			asked := e.answerAll(f, &units)
			want := min(int(n), int(limit))
			if len(e.resumed) != want || len(e.responses) != int(n)-want || asked > want+waveMax {
				t.Errorf("%d at limit %d: %d admitted, %d refused, %d asked about; %v", n, limit, len(e.resumed), len(e.responses), asked, e.count())
			}
			for id, r := range e.responses {
				if r.Status != 429 {
					t.Fatalf("%d is answered %d", id, r.Status)
				}
			}
			if f.calls.held != 0 || f.calls.sources.queued != 0 || len(f.gates.byKey) != 0 || f.gates.first != nil {
				t.Errorf("%d at limit %d: %d bytes, %d in lines, %d gates are left", n, limit, f.calls.held, f.calls.sources.queued, len(f.gates.byKey))
			}
		}
	}
}

// TestABurstDelaysNoOtherClient: another client's request is in the first call, however many
// requests came before it.
func TestABurstDelaysNoOtherClient(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "1000000/1h"))
	e.sendFlood(f, 0, 10000, "/api/x")
	first, _, items := e.check()
	e.properties["source.address"] = "192.0.2.8:1"
	e.sendFlood(f, 20000, 1, "/api/x")
	first.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(900000)}, len(items))...))
	if _, _, items := e.check(); len(items) > 1+waveMax || !slices.ContainsFunc(items, func(i wire.Item) bool {
		return i.Ask.Peer.String() == "192.0.2.8"
	}) {
		t.Errorf("the next call asks %d questions", len(items))
	}
}

// TestADenialAppliesToAllQueued: one denial applies to all queued requests of the client, even
// if denials are not remembered because of a log_only rule, or because the bridge forbids it.
func TestADenialAppliesToAllQueued(t *testing.T) {
	for name, exact := range map[string]bool{"log_only": false, "no memory": true} {
		e := newEnvoy(t)
		p := shopPolicy(t, "5/1h")
		if !exact {
			trial := p.Rules[0]
			trial.Name, trial.Action = "trial", corepolicy.ActionLogOnly
			p.Rules = append(p.Rules, trial)
		}
		f := withPolicy(t, e, p)
		f.leases.exact = exact
		e.sendFlood(f, 0, 1000, "/api/x")
		c, _, items := e.check()
		answers := slices.Repeat([]wire.Answer{denialOver()}, len(items))
		for i := range answers {
			if !exact {
				answers[i].Results = slices.Concat(denialOver().Results, admittedWith(9).Results)
			}
		}
		r := replyWith(answers...)
		if exact {
			r.Leases = wire.LeasingExact
		}
		c.answer(r)
		e.settleTurns(f)
		if len(e.responses) != 1000 || len(e.calls) != 0 {
			t.Errorf("%s: %d refused, %d calls; %v", name, len(e.responses), len(e.calls), e.count())
		}
	}
}

// TestADenialDoesNotApplyToUnknownCredentials: a denial of an address does not apply to requests
// with a credential that is not known yet.
func TestADenialDoesNotApplyToUnknownCredentials(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, withKeys(t))
	for id := range uint32(3 * waveMax) {
		f.NewStream(id).RequestHeaders(get("/api/x", "x-api-key", strconv.Itoa(int(id))))
	}
	e.settleTurns(f)
	asked := 0
	for len(e.calls) > 0 {
		c, _, items := e.check()
		if asked += len(items); len(items) > waveMax {
			t.Errorf("%d are asked about at a time", len(items))
		}
		c.answer(replyWith(slices.Repeat([]wire.Answer{withVerdict(denialOver(), corepolicy.CredentialUnknown, counter.Minute)}, len(items))...))
		e.settleTurns(f)
	}
	if asked != 3*waveMax {
		t.Errorf("%d are asked about", asked)
	}
}

// TestALateAnswerIsNotAskedForAgain: a question that may have been charged is not repeated, because
// each repetition could charge the request once more. The request is denied, even under
// on_error: allow.
func TestALateAnswerIsNotAskedForAgain(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "5/1h"))
	e.sendFlood(f, 0, 1, "/api/x")
	c, _, _ := e.check()
	c.answer(replyWith(wire.Answer{Status: wire.StatusLate}))
	if e.settleTurns(f); len(e.calls) != 0 || e.responses[0].Status != 503 || e.counts[CounterBusy] != 1 || f.calls.failures != 0 {
		t.Errorf("%d more calls, answered %+v, %v", len(e.calls), e.responses, e.count())
	}
}

// TestOnErrorEndsAtTheLimit: without the bridge, all workers together allow each client its limit
// once, and once more in the next window.
func TestOnErrorEndsAtTheLimit(t *testing.T) {
	e, other := newEnvoy(t), newEnvoy(t)
	f, g := withPolicy(t, e, shopPolicy(t, "5/1h")), withPolicy(t, other, shopPolicy(t, "5/1h"))
	e.shared = map[uint32]sharedValue{}
	other.shared = e.shared // the workers of one process
	e.refuses, other.refuses = errNo, errNo
	e.sendFlood(f, 0, 3, "/api/x")
	other.sendFlood(g, 0, 1000, "/api/x")
	e.sendFlood(f, 10, 1000, "/api/x")
	if n := len(e.resumed) + len(other.resumed); n != 5 {
		t.Errorf("%d were let pass: %v %v", n, e.count(), other.count())
	}
	if r := e.responses[900]; r.Status != 429 || !slices.Contains(r.Headers, [2]string{"retry-after", "3600"}) {
		t.Errorf("%+v", r)
	}
	if e.counts[CounterSpent]+other.counts[CounterSpent] != 1998 {
		t.Errorf("counted %v %v", e.count(), other.count())
	}
	e.properties["source.address"] = "192.0.2.99:1"
	if e.sendFlood(f, 2000, 1, "/api/x"); e.resumed[len(e.resumed)-1] != 2000 {
		t.Error("another client is refused")
	}
	e.properties["source.address"] = "192.0.2.7:4711"
	e.now += counter.Hour
	if e.sendFlood(f, 3000, 1, "/api/x"); e.resumed[len(e.resumed)-1] != 3000 {
		t.Error("after an hour it is refused still")
	}
}

// TestTwoWorkersCountTheirFirstRequests: without the bridge, two workers find no record of a
// client, and each creates one. The client is allowed its limit, not twice as much.
func TestTwoWorkersCountTheirFirstRequests(t *testing.T) {
	e, other := newEnvoy(t), newEnvoy(t)
	f, g := withPolicy(t, e, shopPolicy(t, "1/1h")), withPolicy(t, other, shopPolicy(t, "1/1h"))
	e.shared = map[uint32]sharedValue{}
	other.shared = e.shared
	e.refuses, other.refuses = errNo, errNo
	e.shares = func(slot uint32) {
		if slot != keyRecord {
			e.shares = nil
			other.sendFlood(g, 0, 1, "/api/x")
		}
	}
	e.sendFlood(f, 0, 1, "/api/x")
	if len(other.resumed) != 1 || len(e.resumed) != 0 || e.responses[0].Status != 429 {
		t.Errorf("one worker let pass %d, the other %d, answered %+v", len(other.resumed), len(e.resumed), e.responses)
	}
}

// TestDeniedRequestsChargeNoLimit: if one limit denies a request, the other limits do not count it.
// Under on_error: local, the node's share applies.
func TestDeniedRequestsChargeNoLimit(t *testing.T) {
	e := newEnvoy(t)
	p := shopPolicy(t, "4/1h")
	wide := p.Rules[0]
	wide.Name, wide.Limits, wide.OnError = "wide", shopPolicy(t, "40/1h").Rules[0].Limits, counter.OnErrorLocal
	wide.Match = corepolicy.Match{}
	p.Rules = append(p.Rules, wide)
	f := withPolicy(t, e, p)
	f.calls.nodes = 4
	e.refuses = errNo
	if e.sendFlood(f, 0, 100, "/api/x"); len(e.resumed) != 4 {
		t.Errorf("%d were let pass by the narrower", len(e.resumed))
	}
	if e.sendFlood(f, 200, 100, "/other"); len(e.resumed) != 10 {
		t.Errorf("%d were let pass by a quarter of the wider", len(e.resumed))
	}
}

// TestABusyBridgeAdmitsNothing: if the bridge is busy, the filter tries twice more and then denies
// the request, even under on_error: allow. A busy bridge is not an outage.
func TestABusyBridgeAdmitsNothing(t *testing.T) {
	for name, answer := range map[string]func(n int) Reply{
		"an answer": func(n int) Reply {
			return replyWith(slices.Repeat([]wire.Answer{{Status: wire.StatusBusy}}, n)...)
		},
		"the whole call": func(int) Reply { return Reply{Status: 503, Leases: wire.LeasingUsual} },
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "5/1h"))
		e.sendFlood(f, 0, 100, "/api/x")
		for n := 0; len(e.calls) > 0; n++ {
			c, _, items := e.check()
			c.answer(answer(len(items)))
			e.settleTurns(f)
			if n > 1000 {
				t.Fatal("it is asked for ever")
			}
		}
		statuses := map[uint32]int{}
		for _, r := range e.responses {
			statuses[r.Status]++
		}
		if !maps.Equal(statuses, map[uint32]int{503: 100}) || f.calls.failures != 0 {
			t.Errorf("%s: answered %v, %d failures; %v", name, statuses, f.calls.failures, e.count())
		}
	}
}

// TestTheTimeOfACallIsItsOwn: late ticks of Envoy do not count against the bridge, and an answer
// after the deadline shows that the bridge is up.
func TestTheTimeOfACallIsItsOwn(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "5/1h"))
	e.sendFlood(f, 0, 1, "/api/x")
	for range 3 {
		e.now += 150 * counter.Millisecond
		f.Tick()
	}
	if len(e.resumed) != 0 || f.calls.failures != 0 {
		t.Fatalf("decided after three ticks: %v", e.count())
	}
	for range 2 {
		e.timeOut(f)
		e.sendFlood(f, uint32(10+len(e.calls)), 1, "/api/x")
	}
	if f.calls.failures == 0 || e.counts[CounterTimeout] == 0 {
		t.Fatalf("not decided: %v", e.count())
	}
	c, _, _ := e.check()
	c.answer(replyWith(admittedWith(4)))
	if f.calls.failures != 0 || e.counts[CounterLate] != 1 {
		t.Errorf("%d failures, counted %v", f.calls.failures, e.count())
	}
}

// TestNoRequestWaitsForASilentBridge: with a silent bridge, all requests of a burst are usually
// decided within a second, and always within one and a half seconds plus one call.
func TestNoRequestWaitsForASilentBridge(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "5/1h"))
	start := e.now
	e.sendFlood(f, 0, 5000, "/api/x")
	for len(e.resumed)+len(e.responses) < 5000 {
		e.now += tickFast
		f.Tick()
		e.settleTurns(f)
		if e.now-start > f.silentFor()+4*tickFast {
			t.Fatalf("%d are decided after %v", len(e.resumed)+len(e.responses), e.now-start)
		}
	}
	if len(e.resumed) != 5 {
		t.Errorf("%d were let pass", len(e.resumed))
	}
	e = newEnvoy(t)
	f = withPolicy(t, e, shopPolicy(t, "100000/1h"), "poll: 60m")
	start = e.now
	e.sendFlood(f, 0, 5000, "/api/x")
	for len(e.resumed)+len(e.responses) < 5000 { // each call takes 40 ms
		e.now += 4 * tickFast
		for len(e.calls) > 0 {
			c, _, items := e.check()
			c.answer(replyWith(slices.Repeat([]wire.Answer{admittedWith(90000)}, len(items))...))
			f.Tick()
			e.settleTurns(f)
			if len(e.calls) > 0 {
				break
			}
		}
		if e.now-start > 2*waitedMin {
			t.Fatalf("%d are decided after %v", len(e.resumed)+len(e.responses), e.now-start)
		}
	}
	if e.counts[CounterDegraded] != 0 || e.counts[CounterFull] == 0 {
		t.Errorf("counted %v", e.count())
	}
}

// TestAQueueIsBounded: beyond the bound of waiting requests a client is denied with 429. Another
// client's request still causes a call.
func TestAQueueIsBounded(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "5/1h"))
	e.sendFlood(f, 0, waitingMax, "/api/x")
	withFullTurn := 0
	for _, r := range e.responses {
		if r.Status == 429 {
			withFullTurn++
		}
	}
	if withFullTurn == 0 || f.gates.first.length > gateQueueMax || len(e.resumed) != 0 {
		t.Errorf("%d refused, %d in line, %d let pass", withFullTurn, f.gates.first.length, len(e.resumed))
	}
	e.properties["source.address"] = "192.0.2.8:1"
	if f.NewStream(20000).RequestHeaders(get("/api/x")) != Pause || e.responses[20000].Status != 0 {
		t.Error("another client is not asked about")
	}
}
