// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/memstore"
)

// front decides requests as a front does, over a store in memory.
type front struct {
	t     *testing.T
	store counter.Store
	fails error
	// looksFail makes calls with lookups fail, as if package fallback did not answer them.
	looksFail bool
	ruleset   *core.Ruleset
	lines     *Queues
}

// asking is a request that a front is deciding in the background.
type asking struct {
	*front
	plan core.Plan
	wait Wait
	peer string
	path string
}

func (a *asking) Ask(checks []counter.Check) (core.Decision, bool) {
	if a.fails != nil || a.looksFail && checks[0].Op == counter.OpLook {
		return a.plan.Degrade(), false
	}
	if err := a.store.Take(context.Background(), checks, a.plan.Results()); err != nil {
		a.t.Fatal(err)
	}
	return a.plan.Decide(), true
}

func (a *asking) Replan(p *core.Plan) { p.Add(a.ruleset, a) }

func (a *asking) Path() string               { return a.path }
func (*asking) Method() string               { return "GET" }
func (*asking) Host() string                 { return "" }
func (*asking) Query() string                { return "" }
func (*asking) Header(string) (string, bool) { return "", false }
func (*asking) Attr(string) (string, bool)   { return "", false }
func (a *asking) Peer() netip.Addr           { return netip.MustParseAddr(a.peer) }
func (*asking) Remote() netip.Addr           { return netip.Addr{} }
func (*asking) Now() counter.Micros          { return micros(time.Since(time.Time{})) }

// withFront runs a story with a front of two rules: a throttle rule of one request per second, and
// a rule of one request per hour for /hard.
func withFront(t *testing.T, story func(*front)) {
	withFrontOf(t, story, throttleRule(t, "slow", "1/1s fixed_window", 2*counter.Second, 2),
		policy.Rule{Name: "hard", Match: policy.Match{Path: []string{"/hard"}}, Limits: limits(t, "1/1h fixed_window")})
}

// withFrontOf runs a story with a front of the given rules, in a bubble in which time passes only
// when every goroutine waits.
func withFrontOf(t *testing.T, story func(*front), rules ...policy.Rule) {
	t.Helper()
	rs, err := core.Compile(policy.Policy{Name: "n", Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour))) // the time until windows begin
		story(&front{t: t, store: store, ruleset: rs, lines: New(Options{})})
	})
}

func limits(t *testing.T, text string) []counter.Limit {
	t.Helper()
	l, err := counter.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return []counter.Limit{l}
}

// throttleRule returns a throttle rule.
func throttleRule(t *testing.T, name, limit string, most counter.Micros, waiters int) policy.Rule {
	t.Helper()
	return policy.Rule{Name: name, Limits: limits(t, limit), Action: policy.ActionThrottle,
		Throttle: &policy.Throttle{MaxDelay: most, MaxWaiting: waiters}}
}

func (f *front) request(path string) *asking { return f.requestOf("192.0.2.7", path) }

func (f *front) requestOf(peer, path string) *asking {
	a := &asking{front: f, peer: peer, path: path}
	a.plan.Add(f.ruleset, a)
	return a
}

func (a *asking) decide(ctx context.Context) (core.Decision, End) {
	return a.wait.Decide(ctx, a.lines, &a.plan, a.plan.Throttled(), a)
}

func (a *asking) announce() (core.Decision, bool) {
	d, answered := a.Ask(a.wait.First(a.lines, &a.plan, a.plan.Throttled()))
	if !answered {
		a.wait.Unanswered(&d)
		return d, false
	}
	return a.wait.Announce(d, a)
}

// TestAnnounceTakesNothingFromTheQueue: the unit of a new second goes to the request that waits for
// it.
func TestAnnounceTakesNothingFromTheQueue(t *testing.T) {
	withFront(t, func(f *front) {
		if d, answered := f.request("/").announce(); d.Denied() || !answered {
			t.Fatal("the first request must wait", d)
		}
		if d, _ := f.request("/").announce(); !d.Denied() || d.Delay != counter.Second {
			t.Fatal("the second request does not wait for a second", d)
		}
		ended := make(chan End, 1)
		go func() {
			_, end := f.request("/").decide(context.Background())
			ended <- end
		}()
		synctest.Wait()
		time.Sleep(time.Second - time.Microsecond) // the first request of the queue calls the store now
		if d, answered := f.request("/").announce(); !d.Denied() || d.Delay == 0 || d.Delay > counter.Second || !answered {
			t.Error("who comes later goes ahead", d)
		}
		synctest.Wait()
		time.Sleep(time.Millisecond)
		if end := <-ended; end != EndAdmitted {
			t.Error("the one that waited was not admitted: ", end)
		}
		time.Sleep(10 * time.Second)
		if d, _ := f.request("/").announce(); d.Denied() {
			t.Error("nobody waits, and still it is refused", d)
		}
	})
}

// TestAnnounceReturnsFinalDenials: a denial that waiting cannot change is returned at once, and so
// is a failure of the store.
func TestAnnounceReturnsFinalDenials(t *testing.T) {
	withFront(t, func(f *front) {
		f.request("/hard").announce()
		if d, answered := f.request("/hard").announce(); !d.Denied() || d.Delay != 0 || !answered {
			t.Error("to wait for one limit and be refused by another:", d)
		}
		f.fails = errors.New("away")
		if _, answered := f.request("/").announce(); answered {
			t.Error("the store is away, and the request was decided")
		}
	})
}

// TestUnansweredLookupsAreNotAdmitted: if the store does not answer lookups, which charge nothing,
// the requests wait for their turn instead of being admitted uncounted. Their own checks are
// counted, as package fallback counts them while the store does not answer.
func TestUnansweredLookupsAreNotAdmitted(t *testing.T) {
	withFrontOf(t, func(f *front) {
		f.request("/").decide(context.Background())
		f.looksFail = true
		admitted := make(chan time.Duration, 50)
		start := time.Now()
		for range 50 {
			go func() {
				if d, _ := f.request("/").decide(context.Background()); !d.Denied() {
					admitted <- time.Since(start)
				}
			}()
			synctest.Wait()
		}
		if f.lines.Waiting() != 50 || len(admitted) > 0 {
			t.Fatalf("%d wait and %d are admitted, want 50 to wait", f.lines.Waiting(), len(admitted))
		}
		if d, answered := f.request("/").announce(); !d.Denied() || d.Delay == 0 || answered {
			t.Error("a request whose lookups are not answered has no delay:", d)
		}
		for n := 1; n <= 50; n++ {
			if at := <-admitted; at.Truncate(time.Second) != time.Duration(n)*time.Second {
				t.Fatalf("request %d is admitted after %v", n, at)
			}
		}
	}, throttleRule(t, "slow", "1/1s fixed_window", counter.Minute, 50))
}

// TestDisconnectedClientsLeaveTheQueue: a client that disconnects leaves the queue and takes no
// unit.
func TestDisconnectedClientsLeaveTheQueue(t *testing.T) {
	withFront(t, func(f *front) {
		f.request("/").decide(context.Background())
		ctx, leave := context.WithCancel(context.Background())
		ended := make(chan End, 1)
		go func() {
			_, end := f.request("/").decide(ctx)
			ended <- end
		}()
		synctest.Wait()
		if f.lines.Waiting() != 1 {
			t.Fatal("nobody waits")
		}
		leave()
		if end := <-ended; end != EndGone || f.lines.Waiting() != 0 {
			t.Error(end, f.lines.Waiting())
		}
		time.Sleep(time.Second)
		if d, end := f.request("/").decide(context.Background()); d.Denied() || end != EndNone {
			t.Error("the unit of the one that left is gone:", d, end)
		}
	})
}

// TestTheTurnsOfShardsAreNotLost: a rule with two shards admits its whole limit, even if many
// requests between the admitted ones waited in vain.
func TestTheTurnsOfShardsAreNotLost(t *testing.T) {
	all := policy.Rule{Name: "all", PerNone: true, Shards: 2, Limits: limits(t, "20/1h fixed_window")}
	for _, end := range []End{EndFull, EndLate, EndGone, "announced"} {
		withFrontOf(t, func(f *front) {
			for n := range 20 {
				r := f.request("/")
				check := &r.plan.Checks()[r.plan.Throttled()[0].Check]
				slow := Place{Key: check.Key, Limit: *check.Limit, Max: 2}
				ahead := []*Ticket{f.lines.Join(slow)}
				if end == EndFull {
					ahead = append(ahead, f.lines.Join(slow))
				}
				ctx, leave := context.WithCancel(context.Background())
				if end == EndGone {
					leave()
				}
				if end == "announced" {
					if d, _ := r.announce(); d.Delay == 0 {
						f.t.Errorf("announced: %+v", d)
					}
				} else if _, got := r.decide(ctx); got != end {
					f.t.Errorf("ended %q, want %q", got, end)
				}
				leave()
				for _, ticket := range ahead {
					ticket.Leave()
				}
				time.Sleep(time.Second)
				if d, _ := f.request("/").decide(context.Background()); d.Denied() {
					f.t.Fatalf("%s: after %d requests: %+v", end, n, d)
				}
			}
		}, all, throttleRule(t, "slow", "1/1s fixed_window", 2*counter.Second, 2))
	}
}
