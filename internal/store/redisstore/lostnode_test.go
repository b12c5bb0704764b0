// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestReadViewLeavesOutTheLost: a master whose address is lost has port 0. A node without a host is
// the server that replied.
func TestReadViewLeavesOutTheLost(t *testing.T) {
	view, err := readView([]any{
		[]any{int64(0), int64(99), []any{"", int64(0), "id"}, []any{"10.0.0.2", int64(7000), "id"}},
		[]any{int64(100), int64(199), []any{"", int64(7001), "id"}},
		[]any{int64(200), int64(299), []any{nil, int64(0), "id"}},
		[]any{int64(300), int64(399), []any{"?", int64(0), "id"}},
		[]any{int64(400), int64(499), []any{"?", int64(7002), "id"}},
	}, "cache.example:1")
	want := []owner{{100, 199, "cache.example:7001"}, {400, 499, "cache.example:7002"}}
	if diff := cmp.Diff(want, view, cmp.AllowUnexported(owner{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if view, err := readView([]any{[]any{int64(0), int64(99), []any{"", int64(0), "id"}}}, "a:1"); !errors.Is(err, errNoAddress) {
		t.Errorf("nobody at all: %v, %v", view, err)
	}
}

// TestLostMasterStopsNoOther: a process that starts while the cluster has lost a master's address
// serves the slots of the other masters without waiting.
func TestLostMasterStopsNoOther(t *testing.T) {
	good := newFake(t, passed)
	_, port, _ := net.SplitHostPort(good.addr())
	lost := slotOf("rl1:{lost}")
	good.slots = fmt.Sprintf("*3\r\n*3\r\n:0\r\n:%d\r\n*2\r\n$0\r\n\r\n:%s\r\n*3\r\n:%d\r\n:%d\r\n*3\r\n$0\r\n\r\n:0\r\n$2\r\nid\r\n"+
		"*3\r\n:%d\r\n:16383\r\n*2\r\n$0\r\n\r\n:%s\r\n", lost-1, port, lost, lost, lost+1, port)
	s := open(t, Options{Mode: ModeCluster, Addrs: []string{good.addr()}, Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1m fixed_window")
	ask(t, s, take1("rl1:{good}", limit)...)
	begin := time.Now()
	err := s.Take(context.Background(), take1("rl1:{lost}", limit), make([]counter.Result, 1))
	if !errors.Is(err, counter.ErrUnavailable) || kindOf(err) != "connection" || !strings.Contains(err.Error(), "no server is known") {
		t.Errorf("%v, want that nobody has it", err)
	}
	if took := time.Since(begin); took > TimeoutMax/2 {
		t.Errorf("that took %v", took)
	}
}

// TestClusterLosesANodesFile: a master that restarts without its nodes.conf is a new node, and its
// slots keep an invalid address.
func TestClusterLosesANodesFile(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t, "--cluster-require-full-coverage", "no"))
	running := openCluster(t, c, Options{Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1m fixed_window")
	of := map[*redistest.Server]string{} // a key of each master
	for i := 0; len(of) < 3; i++ {
		of[c.Master(slotOf(key(i)))] = key(i)
	}
	for _, k := range of {
		ask(t, running, take1(k, limit)...)
	}
	lost := c.Nodes[0]
	c.ForgetItself(lost)
	started := openCluster(t, c, Options{Timeout: TimeoutMax})
	for name, s := range map[string]*Store{"running": running, "started since": started} {
		waitUntil(t, "the lost slots are nobody's", func() bool {
			return s.askCluster(t.Context()) == nil && s.nodeOf(slotOf(of[lost])) == nil
		})
		for n, k := range of {
			err := s.Take(context.Background(), take1(k, limit), make([]counter.Result, 1))
			if (err != nil) != (n == lost) || err != nil && kindOf(err) != "connection" {
				t.Errorf("%s: %s: %v", name, n.Addr, err)
			}
		}
	}
}

// TestSlotLeftHalfway: a call whose keys are split over two servers fails for that reason, not with
// a timeout.
func TestSlotLeftHalfway(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	s := openCluster(t, c, Options{Timeout: 200 * time.Millisecond})
	limit := limittest.New(t, "10/1m sliding_log")
	checks := take1("rl1:{k}", limit)
	waitUntil(t, "it is charged", func() bool { return s.Take(context.Background(), checks, make([]counter.Result, 1)) == nil })
	slot := slotOf("rl1:{k}")
	to := masterWithout(c, slot)
	c.BeginMove(slot, to)
	if n := c.MoveKeys(slot, to, 1); n != 1 {
		t.Fatalf("%d keys were moved", n)
	}
	for range 8 {
		if err := s.Take(context.Background(), checks, make([]counter.Result, 1)); kindOf(err) != "moving" ||
			!errors.Is(err, counter.ErrUnavailable) || !strings.Contains(err.Error(), "TRYAGAIN") {
			t.Errorf("%v", err)
		}
	}
	if n := s.Stats().Failures[KindMoving]; n != 8 {
		t.Errorf("%d failures are counted as such", n)
	}
}
