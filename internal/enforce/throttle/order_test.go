// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/seed"
)

// clients sends requests of several clients, each with its own limit and all with a common one, and
// records the decisions.
type clients struct {
	*front
	start time.Time
	mu    sync.Mutex
	said  []string // decisions such as "1s x2 admitted", in their order
}

// withClients runs a story with two rules: one limit per client, and one for all clients.
func withClients(t *testing.T, own, all policy.Rule, story func(*clients)) {
	t.Helper()
	all.PerNone = true
	withFrontOf(t, func(f *front) {
		c := &clients{front: f, start: time.Now()}
		story(c)
		synctest.Wait()
		if f.lines.Waiting() != 0 || len(f.lines.queues) != 0 {
			f.t.Errorf("%d still wait in %d queues", f.lines.Waiting(), len(f.lines.queues))
		}
	}, own, all)
}

// clients.ask sends requests and waits until each is decided or queued. A request's client is the
// first letter of its name.
func (c *clients) ask(names ...string) {
	for _, name := range names {
		go func() {
			d, end := c.requestOf(fmt.Sprintf("192.0.2.%d", name[0]), "/").decide(context.Background())
			if end == EndNone && d.Denied() {
				end = "denied"
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.said = append(c.said, strings.TrimSpace(fmt.Sprintf("%s %s %s", time.Since(c.start).Round(10*time.Millisecond), name, end)))
		}()
		synctest.Wait()
	}
}

// clients.pass advances time to an instant, given as the time since the start.
func (c *clients) pass(at time.Duration) {
	time.Sleep(time.Until(c.start.Add(at)))
	synctest.Wait()
}

// clients.want advances time to an instant, given as the time since the start, and compares the
// decisions since the last call. Decisions at the same instant can come in any order.
func (c *clients) want(at time.Duration, lines ...string) {
	c.t.Helper()
	c.pass(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.said)
	slices.Sort(lines)
	if !slices.Equal(c.said, lines) {
		c.t.Errorf("by %s: got\n\t%s\nwant\n\t%s", at, strings.Join(c.said, "\n\t"), strings.Join(lines, "\n\t"))
	}
	c.said = nil
}

// TestTheShortestDelayHoldsAtOnce: x2 is denied at once, because it would wait for its own limit
// longer than the other rule's max_delay.
func TestTheShortestDelayHoldsAtOnce(t *testing.T) {
	own, all := throttleRule(t, "own", "1/20s fixed_window", 30*counter.Second, 9), throttleRule(t, "all", "9/1s fixed_window", 5*counter.Second, 9)
	withClients(t, own, all, func(c *clients) {
		c.ask("x1", "x2", "y")
		c.want(0, "0s x1", "0s x2 denied", "0s y")
		if d, _ := c.requestOf(fmt.Sprintf("192.0.2.%d", 'x'), "/").announce(); !d.Denied() || d.Delay != 0 {
			c.t.Errorf("announced: %+v", d)
		}
		c.want(time.Minute)
	})
}

// TestAnOwnLimitDelaysNoOtherClient: x2 waits for its own limit, and y is admitted.
func TestAnOwnLimitDelaysNoOtherClient(t *testing.T) {
	own, all := throttleRule(t, "own", "1/10s fixed_window", 30*counter.Second, 9), throttleRule(t, "all", "2/1s fixed_window", 30*counter.Second, 9)
	withClients(t, own, all, func(c *clients) {
		c.ask("x1", "x2", "y", "z")
		c.want(5*time.Second, "0s x1", "0s y", "1s z admitted")
		c.want(time.Minute, "10s x2 admitted")
	})
}

// TestADeniedRequestLetsOthersPass: x's limit had room when x2 and x3 arrived, but x1 has used it
// up by the time of their turn.
func TestADeniedRequestLetsOthersPass(t *testing.T) {
	own, all := throttleRule(t, "own", "1/10s fixed_window", 30*counter.Second, 9), throttleRule(t, "all", "2/1s fixed_window", 30*counter.Second, 9)
	withClients(t, own, all, func(c *clients) {
		c.ask("a", "b", "x1", "x2", "x3", "y", "z")
		c.want(5*time.Second, "0s a", "0s b", "1s x1 admitted", "1s y admitted", "2s z admitted")
		c.want(time.Minute, "10s x2 admitted", "20s x3 admitted")
	})
}

// TestARequestDeniedByBothWaitsForTheLonger: both limits deny x2. Its own limit does so for longer,
// so x2 does not block the queue of the common limit.
func TestARequestDeniedByBothWaitsForTheLonger(t *testing.T) {
	own, all := throttleRule(t, "own", "1/10s fixed_window", 30*counter.Second, 9), throttleRule(t, "all", "1/1s fixed_window", 30*counter.Second, 9)
	withClients(t, own, all, func(c *clients) {
		c.ask("x1", "x2", "y")
		c.want(5*time.Second, "0s x1", "1s y admitted")
		c.want(time.Minute, "10s x2 admitted")
	})
}

// TestARequestFromAnotherQueueKeepsItsOrder: after waiting for its own limit, x2 has to wait for
// the common limit too. Its place there is behind the requests that arrived before it, but ahead of
// y, which arrived later.
func TestARequestFromAnotherQueueKeepsItsOrder(t *testing.T) {
	own, all := throttleRule(t, "own", "1/2500ms burst 1", 30*counter.Second, 9), throttleRule(t, "all", "1/1s fixed_window", 30*counter.Second, 9)
	withClients(t, own, all, func(c *clients) {
		c.ask("x1", "a", "b", "c", "d", "x2")
		c.pass(2200 * time.Millisecond)
		c.ask("y")
		c.want(time.Minute, "0s x1", "1s a admitted", "2s b admitted", "3s c admitted", "4s d admitted", "5s x2 admitted", "6s y admitted")
	})
}

// TestAFullQueueRejectsRequestsFromOthers: a full queue rejects a request that moves from another
// queue, just as it rejects a new one.
func TestAFullQueueRejectsRequestsFromOthers(t *testing.T) {
	own, all := throttleRule(t, "own", "1/2500ms burst 1", 30*counter.Second, 9), throttleRule(t, "all", "1/1s fixed_window", 30*counter.Second, 2)
	withClients(t, own, all, func(c *clients) {
		c.ask("x1", "a", "b", "c", "x2", "x3")
		c.pass(2200 * time.Millisecond)
		c.ask("d", "e")
		c.want(2400*time.Millisecond, "0s x1", "0s c full", "1s a admitted", "2s b admitted")
		c.want(3200*time.Millisecond, "2.5s x2 full", "2.5s x3 full", "3s d admitted")
		c.want(time.Minute, "4s e admitted")
	})
}

// TestAdmissibleRequestsQueueBehindOlderOnes: a request is queued if an older one waits, even if no
// limit denies it.
func TestAdmissibleRequestsQueueBehindOlderOnes(t *testing.T) {
	own, all := throttleRule(t, "own", "9/10s fixed_window", 30*counter.Second, 9), throttleRule(t, "all", "9/1s fixed_window", 30*counter.Second, 2)
	withClients(t, own, all, func(c *clients) {
		checks := c.requestOf("192.0.2.1", "/").plan.Checks()
		all := &checks[len(checks)-1] // the limit for all clients
		ticket := c.lines.Join(Place{Key: all.Key, Limit: *all.Limit, Max: 2})
		c.ask("x1", "x2")
		c.want(time.Second, "0s x2 full")
		ticket.Leave()
		c.want(time.Minute, "1s x1 admitted")
	})
}

// sentRequest is a request of one of many clients, and when it was admitted.
type sentRequest struct {
	client   string
	at, till time.Duration
	end      End
}

// sendAs sends a request of a client and waits until it is decided or queued.
func (c *clients) sendAs(client string) *sentRequest {
	v := &sentRequest{client: client, at: time.Since(c.start), end: "waits"}
	go func() {
		d, end := c.requestOf(client, "/").decide(context.Background())
		if v.till, v.end = time.Since(c.start), end; d.Denied() {
			v.end = "denied"
		}
	}()
	synctest.Wait()
	return v
}

// TestNoRequestWaitsWithoutNeed: in every second in which a request waits, all units of the common
// limit are used in that second, or all units of the client's own limit in its current window.
// Requests with the same limits are admitted in order of arrival.
func TestNoRequestWaitsWithoutNeed(t *testing.T) {
	const all, own, ownSpan = 3, 2, 5 * time.Second
	random := rand.New(rand.NewPCG(seed.First(t), 1))
	withClients(t, throttleRule(t, "own", "2/5s fixed_window", counter.Minute, 999), throttleRule(t, "all", "3/1s fixed_window", counter.Minute, 999), func(c *clients) {
		var sent []*sentRequest
		for n := range 100 {
			c.pass(time.Duration(n)*200*time.Millisecond + 50*time.Millisecond)
			client := fmt.Sprintf("192.0.2.%d", random.IntN(4)) // a client that sends requests often
			if random.IntN(2) == 0 {
				client = fmt.Sprintf("198.51.100.%d", n) // a client that sends one request
			}
			sent = append(sent, c.sendAs(client))
		}
		c.pass(5 * time.Minute)
		taken, ofOwn := map[time.Duration]int{}, map[string]int{}
		window := func(v *sentRequest, at time.Duration) string { return fmt.Sprint(v.client, " ", at.Truncate(ownSpan)) }
		for _, v := range sent {
			if v.end != EndNone && v.end != EndAdmitted {
				c.t.Fatalf("%+v", *v)
			}
			taken[v.till.Truncate(time.Second)]++
			ofOwn[window(v, v.till)]++
		}
		last := map[string]time.Duration{}
		for _, v := range sent {
			for at := v.at.Truncate(time.Second); at < v.till.Truncate(time.Second); at += time.Second {
				if taken[at] < all && ofOwn[window(v, at)] < own {
					c.t.Errorf("%+v waits at %s, when %d are let through, %d of them its client's", *v, at, taken[at], ofOwn[window(v, at)])
				}
			}
			group := v.client
			if strings.HasPrefix(group, "198.51.100.") {
				group = "those who come once"
			}
			if v.till < last[group] {
				c.t.Errorf("%+v is let through before one that came before it", *v)
			}
			last[group] = v.till
		}
	})
}
