// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
)

const ms = counter.Millisecond

var (
	fixed   = must(counter.NewLimit(counter.FixedWindow, 1000, counter.Second, 0))
	sliding = must(counter.NewLimit(counter.SlidingWindow, 1000, counter.Second, 0))
	bucket  = must(counter.NewLimit(counter.TokenBucket, 1000, counter.Second, 0))
)

// prepareCall prepares a call and fails the test if the counter makes none.
func prepareCall(t *testing.T, c *Counter, now counter.Micros, l *counter.Limit, cost int64) Call {
	t.Helper()
	a, ok := c.Ask(now, l, cost)
	if !ok {
		t.Fatalf("at %d nothing is to be asked", now)
	}
	return a
}

// leases makes a call at the instant named sent, and answers the call at the instant named now. The
// answer grants 1 + extra units. The window ends at sent + reset.
func leases(t *testing.T, c *Counter, l *counter.Limit, sent, now, reset counter.Micros, extra int64) {
	t.Helper()
	a := prepareCall(t, c, sent, l, 1)
	a.Max = a.Cost + extra
	c.Granted(now, &a, &counter.Result{At: begins + sent, Granted: a.Max, Remaining: 500, Reset: reset, Next: reset, Receipt: begins})
}

func checkTake(t *testing.T, c *Counter, now counter.Micros, l *counter.Limit, cost int64, want Verdict) Held {
	t.Helper()
	v, held := c.Take(now, l, cost)
	if v == AdmitAsk {
		v = Admit
	}
	if v != want {
		t.Errorf("at %d cost %d: verdict %d, want %d", now, cost, v, want)
	}
	return held
}

func checkServe(t *testing.T, c *Counter, now counter.Micros, l *counter.Limit, cost int64, want Verdict) {
	t.Helper()
	if v, _ := c.Serve(now, l, cost); v != want {
		t.Errorf("at %d serving cost %d: verdict %d, want %d", now, cost, v, want)
	}
}

// checkRefund checks the number of units refunded at an instant.
func checkRefund(t *testing.T, c *Counter, now counter.Micros, want int64) {
	t.Helper()
	units := int64(0)
	for _, b := range c.Tick(now, nil) {
		units += b.Units
		if b.Receipt == 0 || b.Age == 0 {
			t.Errorf("gives back %+v", b)
		}
	}
	if units != want {
		t.Errorf("at %d %d units go back, want %d", now, units, want)
	}
}

// TestASlowReply: a call is sent at 0, executed at 1 ms, when the window has 10 ms left, and
// answered at 9 ms. No leased unit is used at 10 ms, although the window would end at 19 ms if it
// were counted from the answer.
func TestASlowReply(t *testing.T) {
	for _, l := range []*counter.Limit{&fixed, &sliding} {
		var c Counter
		leases(t, &c, l, 0, 9*ms, 10*ms, 5)
		checkTake(t, &c, 9*ms, l, 1, Admit)
		checkTake(t, &c, 10*ms, l, 1, Ask)
		checkRefund(t, &c, 10*ms, 4)
	}
}

// TestAReplyAfterTheWindow: a reply that arrives after the window admits only the request that made
// the call, as without a lease. The other units are refunded to their window, and the waiting
// requests make one more call.
func TestAReplyAfterTheWindow(t *testing.T) {
	for _, l := range []*counter.Limit{&fixed, &sliding} {
		var c Counter
		first := prepareCall(t, &c, 0, l, 1)
		c.Granted(1*ms, &first, &counter.Result{Granted: 1, Remaining: 900, Reset: counter.Second, Receipt: begins})
		a := prepareCall(t, &c, 2*ms, l, 1)
		checkTake(t, &c, 2*ms, l, 1, Wait)
		checkTake(t, &c, 2*ms, l, 2, Wait)
		a.Cost, a.Max = 4, 9
		c.Granted(13*ms, &a, &counter.Result{Granted: 9, Remaining: 900, Reset: 10 * ms, Receipt: begins})
		checkRefund(t, &c, 13*ms, 8)
		checkServe(t, &c, 13*ms, l, 1, Ask)
		if a, ok := c.Ask(13*ms, l, 1); !ok || a.Cost != 3 || a.Min != 1 {
			t.Errorf("asks again %+v, %v", a, ok)
		}
		checkServe(t, &c, 13*ms, l, 2, Wait)
	}
}

// TestALostReply: a lost reply never grants anything, and the waiting requests make another call.
func TestALostReply(t *testing.T) {
	var c Counter
	prepareCall(t, &c, 0, &fixed, 1)
	checkTake(t, &c, 1*ms, &fixed, 1, Wait)
	c.Failed(50 * ms)
	if c.Held(50*ms) != 0 || c.Holding() {
		t.Error("something is held of a call without an answer")
	}
	checkServe(t, &c, 50*ms, &fixed, 1, Ask)
	if c.queued != 0 {
		t.Errorf("%d units are waited for", c.queued)
	}
}

// TestLeavingTheQueue: units granted for requests that have left are refunded. Such units were not
// leased, so they must not be held.
func TestLeavingTheQueue(t *testing.T) {
	var c Counter
	a := prepareCall(t, &c, 0, &bucket, 1)
	checkTake(t, &c, 0, &bucket, 2, Wait)
	checkTake(t, &c, 0, &bucket, 3, Wait)
	c.Leave(2)
	a.Cost, a.Max = 6, 6
	c.Granted(1*ms, &a, &counter.Result{Granted: 6, Remaining: 100, Receipt: begins})
	if c.Held(1*ms) != 0 {
		t.Errorf("%d units are in hand that the store does not know as leased", c.Held(1*ms))
	}
	checkServe(t, &c, 1*ms, &bucket, 3, Admit)
	checkTake(t, &c, 1*ms, &bucket, 1, Ask)
	checkRefund(t, &c, 1*ms, 2)
}

// TestFirstComeFirstServed: of the 1 + 2 + 1 + 2 + 1 units requested, the store grants 4.
func TestFirstComeFirstServed(t *testing.T) {
	var c Counter
	a := prepareCall(t, &c, 0, &fixed, 1)
	for _, cost := range []int64{2, 1, 2, 1} {
		checkTake(t, &c, 0, &fixed, cost, Wait)
	}
	a.Cost, a.Max = 7, 7
	c.Granted(1*ms, &a, &counter.Result{Granted: 4, Reset: 500 * ms, Receipt: begins})
	for i, cost := range []int64{2, 1, 2, 1} {
		checkServe(t, &c, 1*ms, &fixed, cost, []Verdict{Admit, Admit, Deny, Deny}[i])
	}
	checkRefund(t, &c, 1*ms, 0)
	checkTake(t, &c, 499*ms, &fixed, 1, Deny)
	checkTake(t, &c, 500*ms, &fixed, 1, Ask)
}

// TestADenialIsOfItsCost: after a denial of cost 5, cost 5 is denied, but cost 4 makes a call. Held
// units are used while a denial is remembered, and a change of the limit drops the denial.
func TestADenialIsOfItsCost(t *testing.T) {
	for _, l := range []*counter.Limit{&fixed, &sliding, &bucket} {
		var c Counter
		leases(t, &c, l, 0, 1, counter.Second, 3)
		a := prepareCall(t, &c, 2, l, 5)
		c.Granted(3, &a, &counter.Result{Denied: true, Wait: 800 * ms, Remaining: 4, Reset: counter.Second, Next: counter.Second})
		checkTake(t, &c, 4, l, 5, Deny)
		checkTake(t, &c, 4, l, 6, Deny)
		checkTake(t, &c, 4, l, 4, Ask)
		for range 3 {
			checkTake(t, &c, 5, l, 1, Admit)
		}
		checkTake(t, &c, 6, l, 1, Ask)
		raised := must(counter.NewLimit(l.Algorithm(), 2000, counter.Second, 0))
		checkTake(t, &c, 7, &raised, 5, Ask)
	}
}

// TestADenialEnds: a denial ends after the store's wait, sooner if leased units might return, and
// after a second at the latest.
func TestADenialEnds(t *testing.T) {
	year := must(counter.ParseLimit("10/year"))
	for _, tt := range []struct {
		name         string
		limit        *counter.Limit
		wait, leased counter.Micros
		ends         counter.Micros // since the call was sent; the answer took 1 ms
	}{
		{name: "a wait", limit: &fixed, wait: 300 * ms, ends: 300 * ms},
		{name: "units out", limit: &fixed, wait: 300 * ms, leased: 100 * ms, ends: 101 * ms},
		{name: "units out for longer", limit: &fixed, wait: 30 * ms, leased: 100 * ms, ends: 30 * ms},
		{name: "a year", limit: &year, wait: 300 * counter.Day, ends: counter.Second},
		{name: "a short wait, of a limit that flows in", limit: &sliding, wait: 100, ends: 11 * ms},
		{name: "a short wait, of one that does not", limit: &fixed, wait: 100, ends: 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Counter
			a := prepareCall(t, &c, 0, tt.limit, 1)
			c.Granted(1*ms, &a, &counter.Result{Denied: true, Wait: tt.wait, Reset: tt.wait, Next: tt.wait, LeasedIn: tt.leased})
			if tt.ends > 1*ms {
				checkTake(t, &c, tt.ends-1, tt.limit, 1, Deny)
			}
			checkTake(t, &c, max(1*ms, tt.ends), tt.limit, 1, Ask)
		})
	}
}

// TestAnotherLimit: when the limit changes, units taken under the old one are refunded, including
// units that arrive later or are put back.
func TestAnotherLimit(t *testing.T) {
	const later = 5 * counter.Second
	var c Counter
	lower := must(counter.NewLimit(counter.FixedWindow, 10, counter.Second, 0))
	checkTake(t, &c, 0, &fixed, 1, Ask)
	leases(t, &c, &fixed, later, later+1, counter.Second, 20)
	held := checkTake(t, &c, later+2, &fixed, 3, Admit)
	a := prepareCall(t, &c, later+2, &fixed, 1)
	checkTake(t, &c, later+3, &lower, 1, Wait)
	checkRefund(t, &c, later+3, 17)
	a.Max = 11
	c.Granted(later+4, &a, &counter.Result{Granted: 11, Remaining: 1, Reset: counter.Second, Receipt: begins})
	checkRefund(t, &c, later+4, 10)
	checkServe(t, &c, later+4, &lower, 1, Ask)
	leases(t, &c, &lower, later+5, later+6, counter.Second, 2)
	c.PutBack(later+7, 3, held)
	if c.Held(later+7) != 2 {
		t.Errorf("%d units in hand, want 2", c.Held(later+7))
	}
	checkRefund(t, &c, later+7, 3)
}

// TestTwoLimitsAlternate: if requests alternate between two limits, each makes its own call, and
// none waits or leases.
func TestTwoLimitsAlternate(t *testing.T) {
	var c Counter
	checkTake(t, &c, 0, &fixed, 1, Ask)
	prepareCall(t, &c, 0, &fixed, 1)
	raised := must(counter.NewLimit(counter.FixedWindow, 2000, counter.Second, 0))
	checkTake(t, &c, 1, &raised, 1, Ask)
	if _, ok := c.Ask(1, &raised, 1); ok {
		t.Error("a second call is to be shared")
	}
	c.Failed(2)
	checkTake(t, &c, counter.Second, &raised, 1, Ask)
	if _, ok := c.Ask(counter.Second, &raised, 1); ok {
		t.Error("a call is to be shared within a second of the change")
	}
	prepareCall(t, &c, counter.Second+1, &raised, 1)
	checkTake(t, &c, counter.Second+1, &raised, 1, Wait)
}

// TestEverythingGoesBack: all units are refunded if none were used for a while, and when the
// counter is released. If a call is answered after the release, the units that its own request does
// not use are refunded too.
func TestEverythingGoesBack(t *testing.T) {
	var c Counter
	leases(t, &c, &fixed, 0, 1*ms, counter.Second, 8)
	checkTake(t, &c, 2*ms, &fixed, 1, Admit)
	c.Tick(50*ms, nil)
	if c.Held(50*ms) == 0 {
		t.Error("everything went back while the counter was in use")
	}
	leases(t, &c, &fixed, 60*ms, 61*ms, counter.Second, 8)
	c.Tick(163*ms, nil)
	if c.Holding() {
		t.Errorf("%d units in hand after 100 ms without use", c.Held(163*ms))
	}
	leases(t, &c, &fixed, 200*ms, 201*ms, counter.Second, 8)
	late := prepareCall(t, &c, 201*ms, &fixed, 1)
	if diff := cmp.Diff([]Refund{{Units: 8, Receipt: begins, Age: ageMin}}, c.Release(nil)); diff != "" {
		t.Error(diff)
	}
	c.Granted(202*ms, &late, &counter.Result{Granted: 6, Remaining: 1, Reset: counter.Second, Receipt: begins})
	checkRefund(t, &c, 202*ms, 5)
}

// TestExpiredLeftoversDoNotShortenWhatComes: units leased while a slot still has a few expired
// units keep their own deadline.
func TestExpiredLeftoversDoNotShortenWhatComes(t *testing.T) {
	var c Counter
	grant := func(sent counter.Micros, extra int64) Call {
		a := prepareCall(t, &c, sent, &fixed, 10)
		a.Max = a.Cost + extra
		c.Granted(sent, &a, &counter.Result{At: begins + sent, Granted: a.Max, Remaining: 500, Reset: counter.Second - sent,
			Next: counter.Second - sent, Receipt: begins})
		return a
	}
	age := grant(0, 17).Age
	checkTake(t, &c, 1*ms, &fixed, 10, Admit)
	grant(2*ms, 13)
	checkTake(t, &c, 3*ms, &fixed, 10, Admit)
	grant(age, 20)
	checkTake(t, &c, age+1*ms, &fixed, 10, Admit)
	checkTake(t, &c, age+2*ms, &fixed, 10, Admit)
}
