// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// askRemaining asks penstock_status how much of the first limit is left, and asks again while the
// answer is 429.
func (s *server) askRemaining() int64 {
	s.t.Helper()
	var told struct{ Limits []struct{ Remaining int64 } }
	var r reply
	eventually.Until(s.t, 10*time.Second, "an answer", func() bool {
		r = s.get("/quota")
		return r.StatusCode != http.StatusTooManyRequests
	})
	if err := json.Unmarshal([]byte(r.body), &told); err != nil || len(told.Limits) == 0 {
		s.t.Fatalf("%d %s: %v", r.StatusCode, r.body, err)
	}
	return told.Limits[0].Remaining
}

// overRedis starts a site that counts in Redis, with the given rules and an upstream. The timeout
// is long, because the machine may be busy.
func overRedis(t *testing.T, rules string, h http.HandlerFunc) *server {
	t.Helper()
	return start(t, `{
		penstock {
			store redis `+redistest.Start(t).URL()+` {
				timeout 10s
			}
		}
	}
	:PORT {
		penstock {
			name shop
			`+rules+`
		}
		penstock_status /quota
		reverse_proxy `+upstream(t, h)+`
	}`)
}

// TestAStreamedAnswerIsSettledAtItsEnd: every event reaches the client immediately, and the cost in
// the last event is charged.
func TestAStreamedAnswerIsSettledAtItsEnd(t *testing.T) {
	goOn := make(chan struct{})
	s := overRedis(t, `rule llm 10000/30d {
		cost_after json usage.total_tokens {
			estimate 100
		}
	}`, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"choice\":%d}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-goOn
		}
		fmt.Fprint(w, "data: {\"usage\":{\"total_tokens\":2345}}\n\ndata: [DONE]\n\n")
	})
	r, err := client.Get("http://127.0.0.1:" + strconv.Itoa(s.port) + "/v1/chat")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	equal(t, "the cost as far as it is known", r.Header.Get("X-RateLimit-Cost"), "100")
	lines := bufio.NewScanner(r.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprintf(`data: {"choice":%d}`, i) || !lines.Scan() {
			t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
		}
		if got := s.askRemaining(); got != 9900 {
			t.Errorf("%d left while it goes on, want what was reserved to be gone", got)
		}
		goOn <- struct{}{} // the upstream sends the next event only when this one has arrived
	}
	if rest, err := io.ReadAll(r.Body); err != nil && len(rest) == 0 {
		t.Fatal(err)
	}
	waitUntil(t, "2345 units are charged", func() bool { return s.askRemaining() == 10000-2345 })
	if metrics := s.metrics(); !strings.Contains(metrics, `penstock_settlements_total{result="settled"}`) {
		t.Errorf("metrics:\n%s", grep(metrics, "settle"))
	}
}

// TestAnAnswerThatBreaksOffCostsTheDefault: the upstream dies in the middle of a document.
func TestAnAnswerThatBreaksOffCostsTheDefault(t *testing.T) {
	s := overRedis(t, `rule llm 10000/30d {
		cost_after json usage.total_tokens {
			estimate 100
			default 700
		}
	}`, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"usage":{"total_tokens":7},`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	before := s.countUnreadable()
	r, err := client.Get("http://127.0.0.1:" + strconv.Itoa(s.port) + "/v1/chat")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(r.Body)
	r.Body.Close()
	if err == nil {
		t.Error("the client was not told that the answer broke off")
	}
	waitUntil(t, "700 units are charged", func() bool { return s.askRemaining() == 9300 })
	waitUntil(t, "a cost that could not be read is counted", func() bool { return s.countUnreadable() == before+1 })
}

// TestARejectedResponseIsNotRefunded: the header of the response is too large, as if the upstream
// repeated what the client sent, so Caddy rejects the response and answers 502.
func TestARejectedResponseIsNotRefunded(t *testing.T) {
	s := start(t, `{
	}
	:PORT {
		penstock {
			name shop
			rule all {
				limit 3/30d
				refund_on status 5xx
			}
		}
		penstock_status /quota
		reverse_proxy `+upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Repeated", strings.Repeat("x", 16<<10))
	})+` {
			transport http {
				max_response_header 4KB
			}
		}
	}`)
	for _, want := range []int{502, 502, 502, 429} {
		if got := s.get("/").StatusCode; got != want {
			t.Fatalf("status %d, want %d", got, want)
		}
	}
}

// TestARepeatedRequestIsNotRefunded: an upstream receives a request, and fails before it answers.
// Go's transport repeats the request, and cannot connect. The request counts, because the upstream
// received it.
func TestARepeatedRequestIsNotRefunded(t *testing.T) {
	for rule, left := range map[string]int64{"refund_on status 5xx": 1, "count_if status 401": 2} { // count_if refunds the 200
		s := start(t, `:PORT {
			penstock {
				name repeated-`+rule[:6]+`
				rule all {
					limit 3/30d
					`+rule+`
				}
			}
			penstock_status /quota
			reverse_proxy `+upstreamThatFails(t)+`
		}`)
		for _, want := range []int{200, 502} {
			equal(t, "status", strconv.Itoa(s.get("/").StatusCode), strconv.Itoa(want))
		}
		eventually.Until(t, 10*time.Second, "the settlements", func() bool { return s.askRemaining() == left })
		equal(t, "status without a connection before", strconv.Itoa(s.get("/").StatusCode), "502")
		eventually.Until(t, 10*time.Second, "a refund of a request that was not sent", func() bool { return s.askRemaining() == left })
	}
}

// upstreamThatFails returns the address of an upstream that answers one request, and ends when it
// has received a second one on the same connection.
func upstreamThatFails(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		requests := bufio.NewReader(conn)
		if _, err := http.ReadRequest(requests); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			_, _ = http.ReadRequest(requests)
		}
		listener.Close()
	}()
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// countUnreadable returns how many costs could not be read so far in this process.
func (s *server) countUnreadable() (n int) {
	s.t.Helper()
	for line := range strings.Lines(s.metrics()) {
		if value, ok := strings.CutPrefix(line, "penstock_unreadable_costs_total "); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatal("no metric of unreadable costs")
	return 0
}

// TestACostThatATrustedPeerDoesNotSay: if a trusted peer sends no cost or an invalid cost, the
// request costs the number that the policy sets, never zero. A metric counts the invalid costs. A
// cost header from an untrusted peer is ignored.
func TestACostThatATrustedPeerDoesNotSay(t *testing.T) {
	s := overRedis(t, `rule r 1000/30d {
		cost header X-Cost {
			trusted 127.0.0.1
			max 9
			n 3
		}
	}
	rule strangers 1000/30d {
		cost header X-Cost {
			trusted 10.0.0.0/8
			n 3
		}
	}`, func(http.ResponseWriter, *http.Request) {})
	left := s.askRemaining()
	for _, c := range []struct {
		said             string
		cost, unreadable int
	}{{"7", 7, 0}, {"0", 3, 1}, {"10", 3, 1}, {"-1", 3, 1}, {"much", 3, 1}, {"", 3, 0}} {
		before := s.countUnreadable()
		if c.said == "" {
			s.get("/")
		} else {
			s.get("/", "X-Cost", c.said)
		}
		if cost := left - s.askRemaining(); cost != int64(c.cost) {
			t.Errorf("X-Cost %q cost %d, want %d", c.said, cost, c.cost)
		}
		if got := s.countUnreadable() - before; got != c.unreadable {
			t.Errorf("X-Cost %q: %d counted as unreadable, want %d", c.said, got, c.unreadable)
		}
		left = s.askRemaining()
	}
}

// TestAnUpgradedConnection: messages of a WebSocket pass both ways, and its request is settled when
// the WebSocket begins.
func TestAnUpgradedConnection(t *testing.T) {
	s := overRedis(t, `rule ws 10/30d {
		refund_on status 101
	}`, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		connection, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		line, _ := buffered.ReadString('\n')
		fmt.Fprint(connection, "you said ", line)
	})
	equal(t, "a request that is none", s.statuses(1, "/"), "200")
	connection, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(s.port))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	fmt.Fprint(connection, "GET /ws HTTP/1.1\r\nHost: ws\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(connection)
	r, err := http.ReadResponse(reader, nil)
	if err != nil || r.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", r, err)
	}
	equal(t, "the limit", r.Header.Get("X-RateLimit-Limit"), "10")
	waitUntil(t, "the upgrade is given back while it lasts", func() bool { return s.askRemaining() == 9 })
	fmt.Fprint(connection, "hello\n")
	if line, err := reader.ReadString('\n'); err != nil || line != "you said hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestADelayThatIsCancelled: a client that leaves frees its place, and the next request proceeds.
func TestADelayThatIsCancelled(t *testing.T) {
	s := overRedis(t, `rule slow 1/4s fixed_window {
		action throttle {
			max_delay 30s
			max_waiting 2
		}
	}`, func(w http.ResponseWriter, _ *http.Request) {})
	waiting := func(n string) func() bool {
		return func() bool { return strings.Contains(s.metrics(), "penstock_waiting "+n+"\n") }
	}
	ask := func(ctx context.Context) <-chan int {
		said := make(chan int, 1)
		go func() {
			request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(s.port)+"/", nil)
			r, err := client.Do(request)
			if err != nil {
				said <- 0
				return
			}
			r.Body.Close()
			said <- r.StatusCode
		}()
		return said
	}
	// The second request is admitted at the start of a window, so the rest of the test begins
	// at that time.
	for range 2 {
		if got := <-ask(context.Background()); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
	}
	ctx, leave := context.WithCancel(context.Background())
	left := ask(ctx)
	waitUntil(t, "one waits", waiting("1"))
	next := ask(context.Background())
	waitUntil(t, "two wait", waiting("2"))
	equal(t, "a third", s.statuses(1, "/"), "429")
	gone := func() string { return grep(s.metrics(), `penstock_waits_total{result="gone"}`) }
	before := gone() // other tests of the process use the same metrics
	leave()
	if got := <-left; got != 0 {
		t.Errorf("the one that left was answered %d", got)
	}
	waitUntil(t, "the place is free", waiting("1"))
	if got := <-next; got != http.StatusOK {
		t.Errorf("the next was answered %d", got)
	}
	metrics := s.metrics()
	if gone() == before || !strings.Contains(metrics, `outcome="delayed",policy="shop",rule="slow"`) {
		t.Errorf("metrics:\n%s", grep(metrics, "wait")+grep(metrics, "requests_total"))
	}
}
