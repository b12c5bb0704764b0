// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestStepsIn: only the moves that a server reports about its own slots are parsed.
func TestStepsIn(t *testing.T) {
	const text = "aaa 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-5460 7000 [77->-bbb] [93-<-ccc] [94-<-ccc]\n" +
		"bbb 127.0.0.1:7002@17002 master - 0 1 2 connected 5461-10921 [5->-aaa]\n" +
		"ccc :0@0 master,noaddr - 0 1 3 disconnected 10922-16383\n" +
		"ddd 127.0.0.1:7004@17004 slave aaa 0 1 1 connected\n"
	giving, taking := stepsIn(text)
	if diff := cmp.Diff([]step{{77, "aaa", "bbb"}}, giving, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]step{{93, "ccc", "aaa"}, {94, "ccc", "aaa"}}, taking, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "\n", "aaa", "aaa :1@2 myself,master - 0 0 1 connected [x->-bbb] [->-] [y-<-] [7] 7->-bbb [8-<-ccc", "myself"} {
		if giving, taking := stepsIn(bad); giving != nil || taking != nil {
			t.Errorf("%q: %v, %v", bad, giving, taking)
		}
	}
}

func TestMovesOf(t *testing.T) {
	giving := map[step]bool{{7, "a", "b"}: true, {8, "a", "b"}: true, {10, "a", "b"}: true, {11, "a", "b"}: true}
	taking := map[step]bool{{7, "a", "b"}: true, {8, "a", "b"}: true, {10, "a", "b"}: true, {3, "c", "b"}: true}
	want := []move{
		{"c", "b", false, true, []Slots{{3, 3}}},
		{"a", "b", true, true, []Slots{{7, 8}, {10, 10}}},
		{"a", "b", true, false, []Slots{{11, 11}}},
	}
	if diff := cmp.Diff(want, movesOf(giving, taking), cmp.AllowUnexported(move{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSlotLeftHalfway: health, doctor and inspect report the aborted move and how to end it. Both
// ways to end it work.
func TestSlotLeftHalfway(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	const key = "rl1:shop:api:{user:u_42}:3600s:sl"
	slot := redisstore.Slot(key)
	from, to := c.Master(slot), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	o, asked := optionsFor(c.Nodes[4].URL()), check(t, key, "10/1h sliding_log", 3)
	charge(t, from, asked)
	if text, _ := healthText(t, connect(t, o)); strings.Contains(text, "note:") {
		t.Error("something is told of a cluster in which nothing moves")
	}

	c.BeginMove(slot, to)
	if n := c.MoveKeys(slot, to, 1); n != 1 {
		t.Fatalf("%d keys were moved", n)
	}
	send := []string{fmt.Sprintf("slot %d is moving from %s to %s: a check with two keys", slot, from.Addr, to.Addr),
		"redis-cli --cluster fix 127.0.0.1:", fmt.Sprintf("CLUSTER SETSLOT %d STABLE and redis-cli", slot)}
	text, ok := healthText(t, connect(t, o))
	if !ok {
		t.Error("a move is taken for wrong")
	}
	contains(t, text, append(send, "note: ")...)
	found, _ := examined(t, o)
	if f := found["moves"]; f.Level != LevelNote || len(f.Do) != 1 {
		t.Errorf("%+v", f)
	}
	contains(t, found["moves"].Text, send...)
	text, _ = describeKey(t, o, key, &asked)
	contains(t, text, append(send, "moving     slot ", "unknown while the slot moves: TRYAGAIN")...)

	shell(t, found["moves"].Do[0])
	c.AwaitOrder()
	if text, ok := healthText(t, connect(t, o)); !ok || strings.Contains(text, "note:") {
		t.Error("the slot still moves")
	}
	text, _ = describeKey(t, o, key, &asked)
	contains(t, text, "7 of 10 left")

	halfMoves(t, c, o, slot)
}

// halfMoves makes only one of the two servers report that a slot is being moved.
func halfMoves(t *testing.T, c *redistest.Cluster, o Options, slot int) {
	t.Helper()
	from, to := c.Master(slot), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	stable := func(n *redistest.Server) {
		if err := n.Client().Do(context.Background(), "cluster", "setslot", slot, "stable").Err(); err != nil {
			t.Fatal(err)
		}
	}
	c.BeginMove(slot, to)
	stable(to)
	text, _ := healthText(t, connect(t, o))
	contains(t, text, fmt.Sprintf("is migrating from %s to %s, which does not import them", from.Addr, to.Addr))
	c.BeginMove(slot, to)
	stable(from)
	text, _ = healthText(t, connect(t, o))
	contains(t, text, fmt.Sprintf("is importing from %s to %s, and the first does not migrate them", from.Addr, to.Addr))
	stable(to)
	if text, _ = healthText(t, connect(t, o)); strings.Contains(text, "note:") {
		t.Error("the slot still moves")
	}
}

// TestHealthOfALostMaster: with a user that is limited to CLUSTER SLOTS, health reports that the
// slots are not served, and does not list servers that do not exist.
func TestHealthOfALostMaster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	c.ForgetItself(c.Nodes[0])
	for _, node := range c.Nodes {
		grantLimiter(t, node, redisstore.ClusterPrivilege)
	}
	for name, url := range map[string]string{"who may ask all": c.Nodes[1].URL(), "the limiter": "redis://limiter:secret-secret@" + c.Nodes[1].Addr} {
		text, ok := healthText(t, connect(t, optionsFor(url)))
		if ok || strings.Contains(text, ":0 ") {
			t.Errorf("%s: ok %v", name, ok)
		}
		contains(t, text, "10923 of 16384 slots are served", "wrong: no server has the slots 0-5460")
	}
	text, _ := healthText(t, connect(t, optionsFor(c.Nodes[1].URL())))
	_, command, ok := strings.Cut(text, "let it take the slots: ")
	if command, _, _ = strings.Cut(command, "\n"); !ok || !strings.HasPrefix(shell(t, command), "OK") {
		t.Errorf("%q is no help", command)
	}
	eventually.Until(t, patience, "the replica serves its master's slots", func() bool {
		text, ok := healthText(t, connect(t, optionsFor(c.Nodes[1].URL())))
		return ok && strings.Contains(text, "16384 of 16384 slots are served")
	})
	// The server that lost its file has no slots, and does not know which servers have them.
	text, ok = healthText(t, connect(t, optionsFor("redis://limiter:secret-secret@"+c.Nodes[0].Addr)))
	if ok {
		t.Error("a cluster without slots is in order")
	}
	contains(t, text, "a cluster of 1 master and 0 replicas; 0 of 16384 slots are served")
}
