// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// fakeServer is a cluster server or a sentinel whose replies the test chooses.
type fakeServer struct {
	listener net.Listener

	mu     sync.Mutex
	slots  string      // the reply to CLUSTER SLOTS, encoded
	epoch  int         // in the reply to CLUSTER INFO or SENTINEL MASTER
	master *fakeServer // in the reply to SENTINEL MASTER; nil means no master
	role   string      // the reply to ROLE
	// replies to EVALSHA; each but the last is used once, and "" closes the connection
	answers []string
	calls   int                 // number of EVALSHA commands
	asked   []string            // the command before each EVALSHA on its connection
	conns   map[net.Conn]string // the last command on each connection
}

// passed is a fake's reply that admits a check of a fresh fixed window.
const passed = "$24\r\n1700000000000000 1 0 0 0\r\n"

func newFake(t *testing.T, answers ...string) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{listener: listener, answers: answers, role: "master", conns: map[net.Conn]string{}}
	t.Cleanup(func() { listener.Close() })
	f.serve(f)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f.talk(conn)
		}
	}()
	return f
}

func (f *fakeServer) addr() string { return f.listener.Addr().String() }

// fakeServer.serve makes another fake the master of all slots.
func (f *fakeServer) serve(master *fakeServer) {
	_, port, _ := net.SplitHostPort(master.addr())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots = "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:" + port + "\r\n$2\r\nid\r\n"
}

func (f *fakeServer) talk(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		words, err := command(r)
		if err != nil {
			return
		}
		reply := f.reply(conn, strings.ToLower(strings.Join(words[:min(len(words), 2)], " ")))
		if reply == "" {
			return
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

// command reads an array of strings.
func command(r *bufio.Reader) (words []string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	for i := 0; i < n && err == nil; i++ {
		var size int
		if line, err = r.ReadString('\n'); err == nil {
			size, err = strconv.Atoi(strings.TrimSpace(line[1:]))
		}
		text := make([]byte, size+2)
		if err == nil {
			_, err = io.ReadFull(r, text)
		}
		words = append(words, string(text[:size]))
	}
	return words, err
}

func (f *fakeServer) reply(conn net.Conn, words string) string {
	word, _, _ := strings.Cut(words, " ")
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.conns[conn]
	f.conns[conn] = word
	switch word {
	case "cluster":
		if words == "cluster slots" {
			return f.slots
		}
		info := fmt.Sprintf("cluster_state:ok\r\ncluster_current_epoch:%d\r\n", f.epoch)
		return fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
	case "sentinel":
		return f.watching()
	case "role":
		return fmt.Sprintf("*1\r\n$%d\r\n%s\r\n", len(f.role), f.role)
	case "evalsha":
		f.calls++
		f.asked = append(f.asked, before)
		answer := f.answers[0]
		if len(f.answers) > 1 {
			f.answers = f.answers[1:]
		}
		return answer
	case "hello":
		return "-ERR unknown command\r\n"
	case "info":
		return "$0\r\n\r\n"
	default:
		return "+OK\r\n"
	}
}

// fakeServer.watch turns a fake into a sentinel that knows a master and a number of failovers.
func (f *fakeServer) watch(master *fakeServer, failovers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.master, f.epoch = master, failovers
}

// setRole sets the answer to ROLE.
func (f *fakeServer) setRole(role string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.role = role
}

func (f *fakeServer) watching() string {
	if f.master == nil {
		return "-ERR No such master with that name\r\n"
	}
	_, port, _ := net.SplitHostPort(f.master.addr())
	epoch := strconv.Itoa(f.epoch)
	return fmt.Sprintf("*6\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nport\r\n$%d\r\n%s\r\n$12\r\nconfig-epoch\r\n$%d\r\n%s\r\n",
		len(port), port, len(epoch), epoch)
}

// fakeServer.cut closes all connections.
func (f *fakeServer) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.conns {
		conn.Close()
	}
}

func (f *fakeServer) seen() (calls int, asked []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.asked
}

// TestRedirections: a call is repeated only after a reply which proves that it was not executed.
func TestRedirections(t *testing.T) {
	slot := slotOf("rl1:{k}")
	for _, test := range []struct {
		name          string
		first, second []string // replies of the servers; the first one has the slots
		calls         [2]int
		kind          string // the text of the failure; "" means success
	}{
		{"moved", []string{"-MOVED SLOT ADDR\r\n"}, []string{passed}, [2]int{1, 1}, ""},
		{"ask", []string{"-ASK SLOT ADDR\r\n"}, []string{passed}, [2]int{1, 1}, ""},
		{"try again", []string{"-TRYAGAIN Multiple keys\r\n", "-TRYAGAIN Multiple keys\r\n", passed}, []string{passed}, [2]int{3, 0}, ""},
		{"cluster down", []string{"-CLUSTERDOWN The cluster is down\r\n", passed}, []string{passed}, [2]int{2, 0}, ""},
		{"loading", []string{"-LOADING Redis is loading\r\n", passed}, []string{passed}, [2]int{2, 0}, ""},
		{"read only", []string{"-READONLY You can't write\r\n", passed}, []string{passed}, [2]int{2, 0}, ""},
		{"read only, before 7", []string{"-" + string(errorBefore7("-READONLY You can't write")) + "\r\n", passed}, []string{passed}, [2]int{2, 0}, ""},
		{"no script", []string{"-NOSCRIPT No matching script\r\n", passed}, []string{passed}, [2]int{2, 0}, ""},
		{"no script after ask", []string{"-ASK SLOT ADDR\r\n"}, []string{"-NOSCRIPT No matching\r\n", passed}, [2]int{1, 2}, ""},
		{"ask, and try again", []string{"-ASK SLOT ADDR\r\n", passed}, []string{"-TRYAGAIN Multiple keys\r\n"}, [2]int{2, 1}, ""},
		{"round and round", []string{"-MOVED SLOT ADDR\r\n"}, []string{"-MOVED SLOT OTHER\r\n"}, [2]int{8, 8}, "moving"},
		{"left halfway", []string{"-ASK SLOT ADDR\r\n"}, []string{"-MOVED SLOT OTHER\r\n"}, [2]int{8, 8}, "moving"},
		{"moved to nowhere", []string{"-MOVED 1 2 3 4\r\n"}, []string{passed}, [2]int{1, 0}, "script"},
		{"moved, another slot", []string{"-MOVED 1 ADDR\r\n"}, []string{passed}, [2]int{1, 0}, "script"},
		{"an error in the script", []string{"-ERR user_script:1: MOVED 1 ADDR\r\n"}, []string{passed}, [2]int{1, 0}, "script"},
		{"out of memory", []string{"-OOM command not allowed\r\n"}, []string{passed}, [2]int{1, 0}, "script"},
		{"out of memory, before 7", []string{"-" + string(errorBefore7("-OOM command not allowed")) + "\r\n"}, []string{passed}, [2]int{1, 0}, "script"},
		{"another type, before 7", []string{"-" + string(errorBefore7("WRONGTYPE Operation")) + "\r\n"}, []string{passed}, [2]int{1, 0}, "script"},
		{"cut", []string{""}, []string{passed}, [2]int{1, 0}, "connection"},
		{"cut after moved", []string{"-MOVED SLOT ADDR\r\n"}, []string{""}, [2]int{1, 1}, "connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := newFake(t, passed), newFake(t, passed)
			known := strings.NewReplacer("SLOT", strconv.Itoa(slot), "ADDR", b.addr(), "OTHER", a.addr())
			for f, answers := range map[*fakeServer][]string{a: test.first, b: test.second} {
				f.serve(a)
				f.answers = nil
				for _, answer := range answers {
					f.answers = append(f.answers, known.Replace(answer))
				}
			}
			s := open(t, Options{Mode: ModeCluster, Addrs: []string{a.addr()}, Timeout: 2 * time.Second})
			err := s.Take(context.Background(), take1("rl1:{k}", limittest.New(t, "10/1m fixed_window")), make([]counter.Result, 1))
			if err == nil != (test.kind == "") || err != nil && kindOf(err) != test.kind {
				t.Errorf("%v, want %q", err, test.kind)
			}
			if f, ok := errors.AsType[*Failure](err); ok && f.Kind == KindMoving && !f.Unsent() {
				t.Error("the failure does not say that no server has executed the call")
			}
			callsA, _ := a.seen()
			callsB, asked := b.seen()
			if got := [2]int{callsA, callsB}; got != test.calls {
				t.Errorf("sent %v times, want %v", got, test.calls)
			}
			if ask := strings.Contains(test.first[0], "ASK"); callsB > 0 && (asked[0] == "asking") != ask {
				t.Errorf("before the call came %q", asked[0])
			}
			if test.name == "no script after ask" && len(asked) == 2 && asked[1] != "asking" {
				t.Errorf("before the second call came %q", asked[1])
			}
		})
	}
}

// TestDividedTooLateFails: a call that must be resent key by key, but has no time left, fails
// rather than being allowed.
func TestDividedTooLateFails(t *testing.T) {
	s := open(t, Options{Mode: ModeCluster, Addrs: []string{newFake(t, passed).addr()}, Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1m fixed_window")
	checks, results := append(take1("rl1:{k}:a", limit), take1("rl1:{k}:b", limit)...), make([]counter.Result, 2)
	ask(t, s, checks[0]) // this makes the server known
	apart := failureOf(serverError("TRYAGAIN Multiple keys"))
	slot := slotOf("rl1:{k}")
	splitCalls := []*splitCall{{checks: checks, results: results, parts: []*part{{place: slot, checks: checks, results: results,
		node: s.nodeOf(slot), failure: apart}}}}
	late := time.Now()
	s.sendUntilDone(t.Context(), late, splitCalls)
	s.mergeAll(t.Context(), late, splitCalls, func(_ int, f *Failure) {
		if f.Kind != KindMoving || f.Cause != apart.Cause {
			t.Errorf("%v, want that the slot moves: %v", f, apart)
		}
	})
}

// TestMovedIsRemembered: after MOVED the second call goes to the slot's new server, even if CLUSTER
// SLOTS is not updated yet.
func TestMovedIsRemembered(t *testing.T) {
	a, b := newFake(t, passed), newFake(t, passed)
	b.serve(a)
	a.answers = []string{fmt.Sprintf("-MOVED %d %s\r\n", slotOf("rl1:{k}"), b.addr())}
	s := open(t, Options{Mode: ModeCluster, Addrs: []string{a.addr()}, Timeout: TimeoutMax})
	ask(t, s, take1("rl1:{k}", limittest.New(t, "10/1m fixed_window"))...)
	if n := s.nodeOf(slotOf("rl1:{k}")); n.address.target != b.addr() && n.address.target != a.addr() {
		t.Errorf("the slot is at %s", n.address.target)
	}
	a.serve(b)
	b.serve(b)
	waitUntil(t, "the view is asked again", func() bool { return s.nodeOf(0).address.target == b.addr() })
}

// TestViewOfACutOffServerIsIgnored: the view of a server with an older epoch is ignored, unless
// there is no other.
func TestViewOfACutOffServerIsIgnored(t *testing.T) {
	old, current := newFake(t, passed), newFake(t, passed)
	old.epoch, current.epoch = 4, 5
	s := open(t, Options{Mode: ModeCluster, Addrs: []string{current.addr()}, Timeout: TimeoutMax})
	ask(t, s, take1("rl1:{k}", limittest.New(t, "10/1m fixed_window"))...)
	s.cluster.node(old.addr()) // both are queried from now on, in any order
	for range 20 {
		if err := s.askCluster(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := s.nodeOf(0).address.target; at != current.addr() {
			t.Fatalf("the slots are at %s, which knows of fewer elections", at)
		}
	}
	current.listener.Close()
	current.cut()
	waitUntil(t, "the other is believed", func() bool {
		return s.askCluster(t.Context()) == nil && s.nodeOf(0).address.target == old.addr()
	})
}

// TestFailedPartGivesBack: if a part fails, the whole call fails, and the charge of the other part
// is refunded.
func TestFailedPartGivesBack(t *testing.T) {
	good, bad := newFake(t, passed), newFake(t, "-OOM command not allowed\r\n")
	_, goodPort, _ := net.SplitHostPort(good.addr())
	_, badPort, _ := net.SplitHostPort(bad.addr())
	slotBad := slotOf("rl1:{bad}")
	view := fmt.Sprintf("*3\r\n*3\r\n:0\r\n:%d\r\n*2\r\n$0\r\n\r\n:%s\r\n*3\r\n:%d\r\n:%d\r\n*2\r\n$0\r\n\r\n:%s\r\n*3\r\n:%d\r\n:16383\r\n*2\r\n$0\r\n\r\n:%s\r\n",
		slotBad-1, goodPort, slotBad, slotBad, badPort, slotBad+1, goodPort)
	good.slots, bad.slots = view, view
	s := open(t, Options{Mode: ModeCluster, Addrs: []string{good.addr()}, Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1m fixed_window")
	checks := append(take1("rl1:{good}", limit), take1("rl1:{bad}", limit)...)
	err := s.Take(context.Background(), checks, make([]counter.Result, 2))
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v, want OOM", err)
	}
	if n, _ := good.seen(); n != 2 {
		t.Errorf("the server that answered was called %d times, want a charge and what gives it back", n)
	}
}

// TestReadView parses replies to CLUSTER SLOTS from servers that know their own host name, and from
// servers that do not.
func TestReadView(t *testing.T) {
	view, err := readView([]any{
		[]any{int64(0), int64(99), []any{"10.0.0.1", int64(7000), "id"}, []any{"10.0.0.2", int64(7000), "id"}},
		[]any{int64(100), int64(199), []any{"", int64(7001), "id"}},
		[]any{int64(200), int64(299), []any{nil, int64(7002), "id"}},
		[]any{int64(300), int64(399), []any{"::1", int64(7003), "id"}},
	}, "cache.example:1")
	want := []owner{{0, 99, "10.0.0.1:7000"}, {100, 199, "cache.example:7001"}, {200, 299, "cache.example:7002"}, {300, 399, "[::1]:7003"}}
	if diff := cmp.Diff(want, view, cmp.AllowUnexported(owner{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range [][]any{nil, {}, {"x"}, {[]any{int64(0), int64(1)}}, {[]any{int64(-1), int64(1), []any{"a", int64(1)}}},
		{[]any{int64(0), int64(16384), []any{"a", int64(1)}}}, {[]any{int64(5), int64(4), []any{"a", int64(1)}}},
		{[]any{int64(0), int64(1), []any{"a", int64(0)}}}, {[]any{int64(0), int64(1), []any{"a", int64(-1)}}},
		{[]any{int64(0), int64(1), []any{"a", "0"}}}, {[]any{int64(0), int64(1), nil}}, {[]any{int64(0), int64(1), []any{"a"}}}} {
		if view, err := readView(bad, "a:1"); err == nil {
			t.Errorf("%v is taken for %v", bad, view)
		}
	}
}
