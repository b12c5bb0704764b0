// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCluster(t *testing.T) {
	begun := time.Now()
	c := StartCluster(t)
	t.Logf("in order after %v", time.Since(begun).Round(time.Millisecond))
	ctx, client := context.Background(), c.Client()
	for i := range 30 {
		if err := client.Set(ctx, fmt.Sprintf("k%d", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.Calls("set"); n < 30 { // replicas execute the commands as well
		t.Errorf("%d sets counted, want 30 at least", n)
	}
	t.Run("a slot moves", func(t *testing.T) {
		slot := c.Slot("{k1}a")
		from, to := c.Master(slot), c.Nodes[1]
		if from == to {
			to = c.Nodes[2]
		}
		from.replyText("mset", "{k1}a", 1, "{k1}b", 1)
		c.BeginMove(slot, to)
		if moved := c.MoveKeys(slot, to, 1); moved != 1 {
			t.Errorf("moved %d keys, want 1", moved)
		}
		if err := from.Client().MGet(ctx, "{k1}a", "{k1}b").Err(); err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN") {
			t.Errorf("keys of both: %v, want TRYAGAIN", err)
		}
		if err := from.Client().Get(ctx, "{k1}none").Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK") {
			t.Errorf("a key that is not there: %v, want ASK", err)
		}
		c.MoveSlot(slot, to) // moves the rest of the slot whose move has begun
		if c.Master(slot) != to || to.replyText("get", "{k1}b") != "1" {
			t.Errorf("slot %d did not move to %s with its keys", slot, to.Addr)
		}
		if err := from.Client().Get(ctx, "{k1}a").Err(); err == nil || !strings.HasPrefix(err.Error(), "MOVED") {
			t.Errorf("the old master: %v, want MOVED", err)
		}
	})
	t.Run("a replica takes over", func(t *testing.T) {
		slot := c.Slot("k2")
		from := c.Master(slot)
		replica := c.Replica(from)
		c.Failover(from)
		if got := c.Master(slot); got != replica {
			t.Errorf("slot %d is served by %s, want %s", slot, got.Addr, replica.Addr)
		}
	})
	t.Run("a master dies and comes back", func(t *testing.T) {
		slot := c.Slot("k3")
		from := c.Master(slot)
		from.Kill()
		begun := time.Now()
		c.AwaitFailover(slot, from)
		t.Logf("replaced after %v", time.Since(begun).Round(time.Millisecond))
		from.Restart()
		c.AwaitOrder()
		if got := c.Replica(c.Master(slot)); got != from || from.replyText("dbsize") == "0" {
			t.Errorf("%s is not the replica of its successor", from.Addr)
		}
	})
}

func TestSentinel(t *testing.T) {
	begun := time.Now()
	s := StartSentinel(t)
	t.Logf("in order after %v", time.Since(begun).Round(time.Millisecond))
	first := s.Master()
	if first != s.Servers[0] || len(s.Addrs()) != 3 {
		t.Errorf("the master is %s, the sentinels %v", first.Addr, s.Addrs())
	}
	first.replyText("set", "k", 1)
	first.replyText("wait", 1, patience.Milliseconds()) // otherwise the failover could lose the data
	begun = time.Now()
	s.Failover()
	t.Logf("in order after a failover of %v", time.Since(begun).Round(time.Millisecond))
	second := s.Master()
	if second == first || second.replyText("get", "k") != "1" {
		t.Errorf("after the failover %s is the master", second.Addr)
	}
	if err := first.Client().Set(context.Background(), "k", 2, 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
		t.Errorf("the old master: %v, want READONLY", err)
	}
	second.Kill()
	begun = time.Now()
	s.AwaitFailover(second)
	t.Logf("replaced after %v", time.Since(begun).Round(time.Millisecond))
	second.Restart()
	s.AwaitOrder()
	if s.Master() != first {
		t.Error("a master that was replaced took its place back")
	}
}
