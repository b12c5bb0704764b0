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

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/storetest"
)

// crowd is clients who have a limit each and one together, and what became of their requests.
type crowd struct {
	*front
	start time.Time
	mu    sync.Mutex
	said  []string // "1s x2 admitted", in the order in which they were decided
}

// crowded runs a story with clients under a rule of each one's own and a rule of all.
func crowded(t *testing.T, own, all core.Rule, story func(*crowd)) {
	t.Helper()
	all.PerNone = true
	frontedBy(t, func(f *front) {
		c := &crowd{front: f, start: time.Now()}
		story(c)
		synctest.Wait()
		if f.lines.Waiting() != 0 || len(f.lines.lines) != 0 {
			f.t.Errorf("%d still wait in %d lines", f.lines.Waiting(), len(f.lines.lines))
		}
	}, own, all)
}

// ask sends a request and waits until it is decided or stands in line. Its client is the first letter of its name.
func (c *crowd) ask(names ...string) {
	for _, name := range names {
		go func() {
			d, end := c.requestOf(fmt.Sprintf("192.0.2.%d", name[0]), "/").decide(context.Background())
			if end == EndNone && d.Refused() {
				end = "denied"
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.said = append(c.said, strings.TrimSpace(fmt.Sprintf("%s %s %s", time.Since(c.start).Round(10*time.Millisecond), name, end)))
		}()
		synctest.Wait()
	}
}

// pass lets time pass until so long after the start.
func (c *crowd) pass(at time.Duration) {
	time.Sleep(time.Until(c.start.Add(at)))
	synctest.Wait()
}

// want lets time pass, and compares what was decided since it was called last. What was decided at one instant comes in any
// order.
func (c *crowd) want(at time.Duration, lines ...string) {
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

// TestTheShortestDelayHoldsAtOnce: x2 would wait for its own limit longer than the other rule lets anybody wait.
func TestTheShortestDelayHoldsAtOnce(t *testing.T) {
	own, all := waiting(t, "own", "1/20s fixed_window", 30*core.Second, 9), waiting(t, "all", "9/1s fixed_window", 5*core.Second, 9)
	crowded(t, own, all, func(c *crowd) {
		c.ask("x1", "x2", "y")
		c.want(0, "0s x1", "0s x2 denied", "0s y")
		if d, _ := c.requestOf(fmt.Sprintf("192.0.2.%d", 'x'), "/").announce(); !d.Refused() || d.Delay != 0 {
			c.t.Errorf("announced: %+v", d)
		}
		c.want(time.Minute)
	})
}

// TestOnesOwnLimitHoldsUpNobodyElse: x2 waits for its own limit, and y finds room.
func TestOnesOwnLimitHoldsUpNobodyElse(t *testing.T) {
	own, all := waiting(t, "own", "1/10s fixed_window", 30*core.Second, 9), waiting(t, "all", "2/1s fixed_window", 30*core.Second, 9)
	crowded(t, own, all, func(c *crowd) {
		c.ask("x1", "x2", "y", "z")
		c.want(5*time.Second, "0s x1", "0s y", "1s z admitted")
		c.want(time.Minute, "10s x2 admitted")
	})
}

// TestWhoseOwnLimitRefusesStepsAside: x's limit had room when they came, and x1 has used it up when it is the others' turn.
func TestWhoseOwnLimitRefusesStepsAside(t *testing.T) {
	own, all := waiting(t, "own", "1/10s fixed_window", 30*core.Second, 9), waiting(t, "all", "2/1s fixed_window", 30*core.Second, 9)
	crowded(t, own, all, func(c *crowd) {
		c.ask("a", "b", "x1", "x2", "x3", "y", "z")
		c.want(5*time.Second, "0s a", "0s b", "1s x1 admitted", "1s y admitted", "2s z admitted")
		c.want(time.Minute, "10s x2 admitted", "20s x3 admitted")
	})
}

// TestWhoWaitedForBothStandsForOne: both limits refuse x2, and its own for longer, so it does not keep the other's line shut.
func TestWhoWaitedForBothStandsForOne(t *testing.T) {
	own, all := waiting(t, "own", "1/10s fixed_window", 30*core.Second, 9), waiting(t, "all", "1/1s fixed_window", 30*core.Second, 9)
	crowded(t, own, all, func(c *crowd) {
		c.ask("x1", "x2", "y")
		c.want(5*time.Second, "0s x1", "1s y admitted")
		c.want(time.Minute, "10s x2 admitted")
	})
}

// TestWhoWaitedElsewhereIsBeforeWhoCameLater: x2 has to wait for the limit of all after its own, behind those that came before
// it and ahead of y.
func TestWhoWaitedElsewhereIsBeforeWhoCameLater(t *testing.T) {
	own, all := waiting(t, "own", "1/2500ms burst 1", 30*core.Second, 9), waiting(t, "all", "1/1s fixed_window", 30*core.Second, 9)
	crowded(t, own, all, func(c *crowd) {
		c.ask("x1", "a", "b", "c", "d", "x2")
		c.pass(2200 * time.Millisecond)
		c.ask("y")
		c.want(time.Minute, "0s x1", "1s a admitted", "2s b admitted", "3s c admitted", "4s d admitted", "5s x2 admitted", "6s y admitted")
	})
}

// TestALineIsFullForThoseWhoComeFromAnother as it is for those who have just come.
func TestALineIsFullForThoseWhoComeFromAnother(t *testing.T) {
	own, all := waiting(t, "own", "1/2500ms burst 1", 30*core.Second, 9), waiting(t, "all", "1/1s fixed_window", 30*core.Second, 2)
	crowded(t, own, all, func(c *crowd) {
		c.ask("x1", "a", "b", "c", "x2", "x3")
		c.pass(2200 * time.Millisecond)
		c.ask("d", "e")
		c.want(2400*time.Millisecond, "0s x1", "0s c full", "1s a admitted", "2s b admitted")
		c.want(3200*time.Millisecond, "2.5s x2 full", "2.5s x3 full", "3s d admitted")
		c.want(time.Minute, "4s e admitted")
	})
}

// TestWhoFindsRoomGoesToTheEndOfTheLine: it has no limit to wait for, and somebody came before.
func TestWhoFindsRoomGoesToTheEndOfTheLine(t *testing.T) {
	own, all := waiting(t, "own", "9/10s fixed_window", 30*core.Second, 9), waiting(t, "all", "9/1s fixed_window", 30*core.Second, 2)
	crowded(t, own, all, func(c *crowd) {
		checks := c.requestOf("192.0.2.1", "/").plan.Checks()
		ticket := c.lines.Join(Place{Key: checks[len(checks)-1].Key, Max: 2}) // of all
		c.ask("x1", "x2")
		c.want(time.Second, "0s x2 full")
		ticket.Leave()
		c.want(time.Minute, "1s x1 admitted")
	})
}

// visit is a request of one of many clients, and when it was let through.
type visit struct {
	client   string
	at, till time.Duration
	end      End
}

// come sends a request of a client and waits until it is decided or stands in line.
func (c *crowd) come(client string) *visit {
	v := &visit{client: client, at: time.Since(c.start), end: "waits"}
	go func() {
		d, end := c.requestOf(client, "/").decide(context.Background())
		if v.till, v.end = time.Since(c.start), end; d.Refused() {
			v.end = "denied"
		}
	}()
	synctest.Wait()
	return v
}

// TestNobodyWaitsForNothing: in every second that a request waits all units of that second are taken, or those of its client's
// own limit. Whoever has the same limits as others is let through in the order in which they came.
func TestNobodyWaitsForNothing(t *testing.T) {
	const all, own, ownSpan = 3, 2, 5 * time.Second
	random := rand.New(rand.NewPCG(storetest.Seed(t), 1))
	crowded(t, waiting(t, "own", "2/5s fixed_window", core.Minute, 999), waiting(t, "all", "3/1s fixed_window", core.Minute, 999), func(c *crowd) {
		var visits []*visit
		for n := range 100 {
			c.pass(time.Duration(n)*200*time.Millisecond + 50*time.Millisecond)
			client := fmt.Sprintf("192.0.2.%d", random.IntN(4)) // who comes often
			if random.IntN(2) == 0 {
				client = fmt.Sprintf("198.51.100.%d", n) // who comes once
			}
			visits = append(visits, c.come(client))
		}
		c.pass(5 * time.Minute)
		taken, ofOwn := map[time.Duration]int{}, map[string]int{}
		window := func(v *visit, at time.Duration) string { return fmt.Sprint(v.client, " ", at.Truncate(ownSpan)) }
		for _, v := range visits {
			if v.end != EndNone && v.end != EndAdmitted {
				c.t.Fatalf("%+v", *v)
			}
			taken[v.till.Truncate(time.Second)]++
			ofOwn[window(v, v.till)]++
		}
		last := map[string]time.Duration{}
		for _, v := range visits {
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
