// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// throttleCaddyfile returns a Caddyfile that throttles requests to the given limit. The rule named
// audit counts the charges and never denies. The rule named hard admits only one request to /hard.
func throttleCaddyfile(head, limit string) string {
	return head + `:SITE {
	penstock {
		rule slow ` + limit + ` {
			action throttle {
				max_delay 20s
				max_waiting 7
			}
		}
		rule audit 1000000/30d fixed_window
		rule hard 1/30d fixed_window {
			match path /hard
		}
	}
	respond "{http.penstock.decision}"
}
`
}

const audits = "rl1:who:audit:*"

// waiter is a request that may have to wait.
type waiter struct {
	name    string
	path    string
	leave   context.CancelFunc
	answer  answer
	ended   time.Time
	reset   int64 // end of the window in which the request was charged
	ordinal int64 // position among the charges of that window, from 1
}

// queue is a sequence of requests in the order of their arrival.
type queue struct {
	t     *testing.T
	p     *process
	count int64 // units of the limit
	group sync.WaitGroup

	mu    sync.Mutex
	here  []*waiter
	ended int
}

// queue.join sends a request, and waits until it is answered or is in the throttle queue. So the
// request precedes the next one.
func (q *queue) join(name, path string) *waiter {
	q.t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	v := &waiter{name: name, path: path, leave: leave}
	q.t.Cleanup(leave)
	q.mu.Lock()
	q.here = append(q.here, v)
	q.mu.Unlock()
	q.group.Go(func() {
		a := q.p.ask(ctx, http.MethodGet, path)
		q.mu.Lock()
		defer q.mu.Unlock()
		v.answer, v.ended = a, time.Now()
		v.reset, v.ordinal = a.number("X-RateLimit-Reset"), q.count-a.number("X-RateLimit-Remaining")
		q.ended++
	})
	eventually.Until(q.t, patience, name+" was answered or waits", func() bool {
		q.mu.Lock()
		all, ended := len(q.here), q.ended
		q.mu.Unlock()
		return q.waiting()+ended >= all
	})
	return v
}

func (q *queue) waiting() int { return int(q.p.metric("penstock_waiting ")) }

// queue.order waits until all requests are answered. It returns the names of the admitted requests
// to the path /, in the order of the windows in which they were charged. The requests of one window
// are in the order of their arrival, because their calls are under way at the same time. The
// windows and the remaining units are in the answers.
func (q *queue) order() string {
	q.t.Helper()
	q.group.Wait()
	admitted := slices.Clone(q.here)
	admitted = slices.DeleteFunc(admitted, func(v *waiter) bool {
		return v.path != "/" || v.answer.status != http.StatusOK
	})
	slices.SortFunc(admitted, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(a.reset, b.reset), cmp.Compare(a.ordinal, b.ordinal))
	})
	for i, v := range admitted {
		if i > 0 && v.reset == admitted[i-1].reset && v.ordinal != admitted[i-1].ordinal+1 {
			q.t.Errorf("%s is charge %d of its window, after %d: a unit was lost or charged twice", v.name, v.ordinal, admitted[i-1].ordinal)
		}
	}
	slices.SortStableFunc(admitted, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(a.reset, b.reset), cmp.Compare(slices.Index(q.here, a), slices.Index(q.here, b)))
	})
	var names []string
	for _, v := range admitted {
		names = append(names, v.name)
	}
	return strings.Join(names, " ")
}

// awaitWindow waits until a window of the given length has just begun. Redis runs on this machine,
// and so has the same clock.
func awaitWindow(t *testing.T, span time.Duration) {
	t.Helper()
	eventually.Until(t, 2*span, "a window begins", func() bool { return time.Since(time.Now().Truncate(span)) < span/10 })
}

// TestThrottleIsTheRateOverTwoNodes tests that sixty simultaneous requests to two Caddys pass no
// faster than the rate of the limit, and that none is denied.
func TestThrottleIsTheRateOverTwoNodes(t *testing.T) {
	t.Parallel()
	const perNode, rate, burst = 30, 20, 5
	redis := redistest.Start(t)
	config := strings.Replace(throttleCaddyfile(shared, "20/1s burst 5"), "max_waiting 7", "max_waiting 1000", 1)
	nodes := fleet(t, 2, redis, config)
	var mu sync.Mutex
	var passed []time.Time
	var group sync.WaitGroup
	start := time.Now()
	for _, p := range nodes {
		for range perNode {
			group.Go(func() {
				a := p.ask(context.Background(), http.MethodGet, "/")
				mu.Lock()
				defer mu.Unlock()
				if passed = append(passed, time.Now()); a.status != http.StatusOK {
					t.Errorf("status %d", a.status)
				}
			})
		}
	}
	group.Wait()
	slices.SortFunc(passed, time.Time.Compare)
	// This check cannot fail because a busy machine delivers answers late.
	for i := range passed {
		if most := burst + int(rate*passed[i].Sub(start).Seconds()); i+1 > most {
			t.Fatalf("%d requests passed in %v, more than %d", i+1, passed[i].Sub(start), most)
		}
	}
	ideal := time.Second * (2*perNode - burst) / rate
	took := passed[len(passed)-1].Sub(start)
	if took > ideal+answerWithin {
		t.Errorf("%d requests took %v, want %v", len(passed), took, ideal)
	}
	t.Logf("%d requests in %v, want %v", len(passed), took, ideal)
	if n := sum(readUsed(t, redis, audits)); n != 2*perNode {
		t.Errorf("%d charged, want %d", n, 2*perNode)
	}
}

// TestThrottleServesInTurn tests that requests are admitted in the order of their arrival. A
// request whose client leaves frees its place in the queue, and is not charged. A request beyond
// max_waiting is denied. A request that another limit denies is denied at once, even if the queue
// is long.
func TestThrottleServesInTurn(t *testing.T) {
	t.Parallel()
	const span = 6 * time.Second
	redis := redistest.Start(t)
	q := &queue{t: t, p: fleet(t, 1, redis, throttleCaddyfile(shared, "4/6s fixed_window"))[0], count: 4}
	awaitWindow(t, span)
	first := q.join("hard", "/hard")
	for _, name := range []string{"a", "b", "c"} {
		q.join(name, "/")
	}
	begin := time.Now()
	var left *waiter
	for _, name := range []string{"d", "e", "f", "g", "h", "i", "j"} {
		if v := q.join(name, "/"); name == "e" {
			left = v
		}
	}
	refused := q.join("too many", "/")
	hard := q.join("hard again", "/hard")
	left.leave()
	eventually.Until(t, patience, "the place is free", func() bool { return q.waiting() == 6 })
	q.join("k", "/")
	if len := q.waiting(); len != 7 {
		t.Fatalf("%d wait, want 7: the machine was too slow for this test", len)
	}
	if got, want := q.order(), "a b c d f g h i j k"; got != want || first.answer.status != http.StatusOK {
		t.Errorf("served in the order %q, want %q, and before them status %d", got, want, first.answer.status)
	}
	for _, v := range []*waiter{refused, hard} {
		if took := v.ended.Sub(begin); v.answer.status != http.StatusTooManyRequests || took > span-span/4 {
			t.Errorf("%s: status %d after %v", v.name, v.answer.status, took)
		}
	}
	if wait := refused.answer.number("Retry-After"); wait != 20 {
		t.Errorf("one too many is told to come back after %d s, want those of max_delay", wait)
	}
	if wait := hard.answer.number("Retry-After"); wait < 3600 {
		t.Errorf("whom another limit refuses is told to come back after %d s", wait)
	}
	if n := sum(readUsed(t, redis, audits)); n != 11 {
		t.Errorf("%d charged, want 11", n)
	}
	for end, n := range map[string]float64{"gone": 1, "full": 1, "admitted": 7} {
		if got := q.p.metric(`penstock_waits_total{result="` + end + `"}`); got != n {
			t.Errorf("%v waits ended %s, want %v", got, end, n)
		}
	}
}

// TestReloadWhileRequestsWait tests that waiting requests keep their places before requests that
// arrive after a reload, even if the reload changes the store.
func TestReloadWhileRequestsWait(t *testing.T) {
	t.Parallel()
	const span = 2 * time.Second
	config := throttleCaddyfile(shared, "3/2s fixed_window")
	for name, next := range map[string]string{"same store": config, "another deadline": strings.Replace(config, "5s", "6s", 1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			q := &queue{t: t, p: fleet(t, 1, redis, config)[0], count: 3}
			awaitWindow(t, span)
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				q.join(name, "/")
			}
			q.p.write(next)
			if err := q.p.reload(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"f", "g"} {
				q.join(name, "/")
			}
			if got, want := q.order(), "a b c d e f g"; got != want {
				t.Errorf("served in the order %q, want %q", got, want)
			}
			if n := sum(readUsed(t, redis, audits)); n != 7 {
				t.Errorf("%d charged, want 7", n)
			}
		})
	}
}

// TestCaddyStopsWhileRequestsWait tests that a Caddy that is stopped answers all waiting requests
// in turn before it ends, and that each of them is charged once.
func TestCaddyStopsWhileRequestsWait(t *testing.T) {
	t.Parallel()
	const span = time.Second
	redis := redistest.Start(t)
	q := &queue{t: t, p: fleet(t, 1, redis, throttleCaddyfile(shared, "3/1s fixed_window"))[0], count: 3}
	awaitWindow(t, span)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		q.join(name, "/")
	}
	if err := q.p.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got, want := q.order(), "a b c d e f g h"; got != want {
		t.Errorf("served in the order %q, want %q", got, want)
	}
	select {
	case <-q.p.done:
	case <-time.After(patience):
		t.Fatal("Caddy does not end")
	}
	if code := q.p.command.ProcessState.ExitCode(); code != 0 {
		t.Errorf("Caddy ended with status %d", code)
	}
	if n := sum(readUsed(t, redis, audits)); n != 8 {
		t.Errorf("%d charged, want 8", n)
	}
}

// TestThrottleKeepsOrderUnderLoad tests that no request overtakes an earlier one while requests
// arrive continuously.
func TestThrottleKeepsOrderUnderLoad(t *testing.T) {
	t.Parallel()
	const requests, every = 300, 10 * time.Millisecond
	config := strings.Replace(throttleCaddyfile(shared, "40/1s burst 1"), "max_waiting 7", "max_waiting 1000", 1)
	p := fleet(t, 1, redistest.Start(t), config)[0]
	type turn struct{ came, went time.Time }
	turns := make([]turn, requests)
	var group sync.WaitGroup
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range turns {
		<-tick.C
		group.Go(func() {
			turns[i].came = time.Now()
			if a := p.ask(context.Background(), http.MethodGet, "/"); a.status != http.StatusOK {
				t.Errorf("status %d", a.status)
			}
			turns[i].went = time.Now()
		})
	}
	group.Wait()
	// A busy machine may reorder arrivals and answers that are less than this time apart.
	const sure = 1500 * time.Millisecond
	overtaken := 0
	for _, first := range turns {
		for _, second := range turns {
			if second.came.Sub(first.came) > sure && first.went.Sub(second.went) > sure {
				overtaken++
			}
		}
	}
	if overtaken > 0 {
		t.Errorf("%d times a request overtook an earlier one", overtaken)
	}
}
