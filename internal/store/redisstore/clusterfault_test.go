// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/redistest"
)

// where returns a function that finds the server of a key in the store's slot table. The server
// must be one of the cluster.
func where(t testing.TB, c *redistest.Cluster, s *Store) func(key string) *redistest.Server {
	return func(key string) *redistest.Server {
		for _, node := range c.Nodes {
			if node.Addr == s.nodeOf(slotOf(key)).address.target {
				return node
			}
		}
		t.Fatalf("nobody has %q", key)
		return nil
	}
}

// masterWithout returns a master of a cluster that does not have the slot.
func masterWithout(c *redistest.Cluster, slot int) *redistest.Server {
	from := c.Master(slot)
	for _, other := range []int{0, slotCount / 2, slotCount - 1} { // a slot of each master
		if to := c.Master(other); to != from {
			return to
		}
	}
	return nil
}

// TestSlotsMoveUnderLoad moves the slots of the callers' keys back and forth: no call fails and
// none is charged twice.
func TestSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	f := startWide(t, openCluster(t, c, Options{Timeout: TimeoutMax}), 16)
	f.each(t)
	for i := range 3 {
		slot := slotOf(key(i))
		to := masterWithout(c, slot)
		c.BeginMove(slot, to)
		f.each(t)
		for c.MoveKeys(slot, to, 1) > 0 {
			f.each(t)
		}
		c.EndMove(slot, to)
		f.each(t)
	}
	f.checkUnharmed(t, c, "while slots moved")
}

// traffic.checkUnharmed ends a load and checks that no call has failed or was charged twice.
func (f *traffic) checkUnharmed(t *testing.T, c *redistest.Cluster, when string) {
	t.Helper()
	f.end(t)
	f.atMostOnceIn(t, where(t, c, f.store), false)
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d calls failed %s", n, when)
	}
}

// TestMasterKilledUnderLoad kills one of three masters. The callers of the other masters continue.
// The callers of the killed master's keys fail, first at their deadline and then at once, until the
// replica has taken over. No call is charged twice.
func TestMasterKilledUnderLoad(t *testing.T) {
	for name, fault := range map[string]struct{ begin, end func(*redistest.Server) }{
		"killed":  {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"stopped": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // both cases spend most of their time waiting
			c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
			f := startPaced(t, openCluster(t, c, Options{}), 24, time.Millisecond)
			f.each(t)
			slot := slotOf(key(0))
			dead := c.Master(slot)
			others := map[int]bool{}
			for i := range f.callers {
				others[i] = c.Master(slotOf(key(i))) != dead
			}
			fault.begin(dead)
			f.failures(t, 50)
			f.eachOf(t, func(i int) bool { return others[i] })
			f.each(t) // the slot is served by the replica
			fault.end(dead)
			c.AwaitFailover(slot, dead)
			f.each(t)
			f.end(t)
			f.atMostOnceIn(t, where(t, c, f.store), true)
		})
	}
}

// TestOrderlyFailoverUnderLoad lets a replica take over from a running master: no charge is lost or
// made twice.
func TestOrderlyFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	f := startPaced(t, openCluster(t, c, Options{Timeout: slowest / 2}), 24, time.Millisecond)
	f.each(t)
	c.Failover(c.Master(slotOf(key(0))))
	f.each(t)
	f.end(t)
	f.atMostOnceIn(t, where(t, c, f.store), false)
}

// TestClusterForgetsScriptsUnderLoad: no call fails when the servers lose the script.
func TestClusterForgetsScriptsUnderLoad(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	f := startWide(t, openCluster(t, c, Options{Timeout: slowest / 2}), 16)
	for range 3 {
		f.each(t)
		for _, node := range c.Nodes[:3] {
			if err := node.Client().ScriptFlush(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.each(t)
	f.checkUnharmed(t, c, "where the script is loaded again and they are sent again")
}

// reshardedSlots is how many slots are moved under load. There are no more, because redis-cli takes
// some milliseconds for each.
const reshardedSlots = 1600

// TestReshardUnderLoad takes all slots from a master, as an operator does: no call fails and none
// is charged twice.
func TestReshardUnderLoad(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartUnevenCluster(t, reshardedSlots, slotCount/2))
	f := startPaced(t, openCluster(t, c, Options{Timeout: TimeoutMax}), 24, 4*time.Millisecond)
	f.each(t)
	from := c.Master(0)
	slot := slotCount
	for i := range f.callers {
		slot = min(slot, slotOf(key(i)))
	}
	if slot >= reshardedSlots {
		t.Fatal("nobody counts in the slots that are moved")
	}
	reshard(t, c, from, c.Nodes[1])
	f.each(t)
	f.checkUnharmed(t, c, "while a master lost its slots")
	if f.store.nodeOf(slot).address.target == from.Addr {
		t.Error("the slots have not moved")
	}
}

// reshard moves all slots of a master with redis-cli.
func reshard(t *testing.T, c *redistest.Cluster, from, to *redistest.Server) {
	t.Helper()
	id := func(s *redistest.Server) string {
		return s.Client().Do(context.Background(), "cluster", "myid").Val().(string)
	}
	command := exec.Command("redis-cli", "--cluster", "reshard", to.Addr, "--cluster-from", id(from), "--cluster-to", id(to),
		"--cluster-slots", fmt.Sprint(reshardedSlots), "--cluster-yes")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("redis-cli: %v\n%s", err, out[max(0, len(out)-2000):])
	}
	c.AwaitOrder()
}
