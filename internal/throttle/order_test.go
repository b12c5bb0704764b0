// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core"
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
			t.Errorf("%d still wait in %d lines", f.lines.Waiting(), len(f.lines.lines))
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
			t.Errorf("announced: %+v", d)
		}
		c.want(time.Minute)
	})
}
