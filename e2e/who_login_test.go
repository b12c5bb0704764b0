// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// loginPage is a login service with one valid password.
type loginPage struct {
	address      string
	wrong, right atomic.Int64  // numbers of logins that reached the service
	hold         chan struct{} // if not nil, every login waits until it is closed
}

func newLoginPage(t *testing.T) *loginPage {
	t.Helper()
	page := new(loginPage)
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	page.address = server.Listener.Addr().String()
	return page
}

func (l *loginPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	right := r.Header.Get("X-Password") == "right"
	if right {
		l.right.Add(1)
	} else {
		l.wrong.Add(1)
	}
	if l.hold != nil {
		<-l.hold
	} else {
		// This is the time to hash a password. Meanwhile other logins arrive.
		<-time.After(20 * time.Millisecond)
	}
	switch {
	case right:
	case r.Header.Get("X-Password") == "":
		w.WriteHeader(http.StatusForbidden)
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
}

const failedLoginsMax = 5

// logins returns a Caddyfile that limits failed logins. The parameter named head begins the
// Caddyfile, and configures the store and its deadline.
func logins(l *loginPage, head string) string {
	return head + `:SITE {
	penstock {
		trusted_hops 1
		rule login 5/30d fixed_window {
			match path /login
			per ip
			count_if status 401 403
		}
	}
	reverse_proxy ` + l.address + `
}
`
}

func (p *process) login(from, password string) answer {
	return p.ask(context.Background(), http.MethodPost, "/login", "X-Forwarded-For", from, "X-Password", password)
}

// TestParallelLoginsCannotSlipThrough tests that exactly five of fifty wrong passwords reach the
// service if they are sent to two Caddys at once.
func TestParallelLoginsCannotSlipThrough(t *testing.T) {
	t.Parallel()
	const attempts = 50
	redis, page := redistest.Start(t), newLoginPage(t)
	nodes := fleet(t, 2, redis, logins(page, shared))
	var refused, failed atomic.Int64
	var group sync.WaitGroup
	for n := range attempts {
		group.Go(func() {
			password := "wrong"
			if n%5 == 0 {
				password = "" // answered with 403
			}
			switch a := nodes[n%len(nodes)].login("192.0.2.1", password); a.status {
			case http.StatusTooManyRequests:
				refused.Add(1)
			case http.StatusUnauthorized, http.StatusForbidden:
				failed.Add(1)
			default:
				t.Errorf("status %d", a.status)
			}
		})
	}
	group.Wait()
	if page.wrong.Load() != failedLoginsMax || failed.Load() != failedLoginsMax || refused.Load() != attempts-failedLoginsMax {
		t.Errorf("%d wrong passwords were tried, %d answered, %d refused: want %d tried", page.wrong.Load(), failed.Load(),
			refused.Load(), failedLoginsMax)
	}
	if a := nodes[0].login("192.0.2.1", "right"); a.status != http.StatusTooManyRequests {
		t.Errorf("the right password at last: status %d", a.status)
	}
}

// TestRightLoginsCostNothing tests that only failed logins are charged. A user logs in many times
// through two Caddys, with a few wrong passwords in between.
func TestRightLoginsCostNothing(t *testing.T) {
	t.Parallel()
	redis, page := redistest.Start(t), newLoginPage(t)
	nodes := fleet(t, 2, redis, logins(page, shared))
	counted := func() int64 { return sum(readUsed(t, redis, "rl1:who:login:*")) }
	for n := range 30 {
		if a := nodes[n%len(nodes)].login("192.0.2.2", "right"); a.status != http.StatusOK {
			t.Fatalf("login %d: status %d", n, a.status)
		}
	}
	eventually.Until(t, patience, "nothing is charged", func() bool { return counted() == 0 })
	for n := range failedLoginsMax {
		if a := nodes[n%len(nodes)].login("192.0.2.2", "wrong"); a.status != http.StatusUnauthorized {
			t.Errorf("wrong password %d: status %d", n, a.status)
		}
		if n == failedLoginsMax-1 {
			break
		}
		if a := nodes[n%len(nodes)].login("192.0.2.2", "right"); a.status != http.StatusOK {
			t.Errorf("right password after %d wrong ones: status %d", n+1, a.status)
		}
		eventually.Until(t, patience, "the wrong ones are charged", func() bool { return counted() == int64(n+1) })
	}
	for _, p := range nodes {
		if a := p.login("192.0.2.2", "wrong"); a.status != http.StatusTooManyRequests || a.number("Retry-After") < 1 {
			t.Errorf("one wrong password too many: status %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
		}
	}
	if a := nodes[0].login("192.0.2.3", "right"); a.status != http.StatusOK {
		t.Errorf("another client: status %d", a.status)
	}
}

// open is the head of a Caddyfile with on_error: allow.
var open = strings.NewReplacer("deny", "allow", " {\n\t\t\ttimeout 5s\n\t\t}", "").Replace(shared)

// TestRedisFailsWithLoginsOpen tests that clients are answered as usual if Redis is down when the
// service answers. A charge that cannot be refunded remains. No client is charged twice or gets
// more attempts than the limit.
func TestRedisFailsWithLoginsOpen(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct {
		begin, end func(r *redistest.Server)
		least      int64 // units that must remain charged
	}{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart, 3},
		// A frozen Redis executes the pending refunds when it continues.
		"frozen": {(*redistest.Server).Pause, (*redistest.Server).Resume, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			page := newLoginPage(t)
			page.hold = make(chan struct{})
			release := sync.OnceFunc(func() { close(page.hold) })
			p := fleet(t, 1, redis, logins(page, open))[0]
			t.Cleanup(release) // runs before Caddy and the service are stopped, which wait for the answers
			answers, sent := make(chan answer, 10*failedLoginsMax), 0
			eventually.Until(t, patience, "three are charged and wait for the service", func() bool {
				if page.right.Load() != int64(sent) {
					return false
				}
				if sum(readUsed(t, redis, "rl1:who:login:*")) == 3 {
					return true
				}
				sent++ // more than three logins are sent if Redis is too slow to charge one of them
				go func() { answers <- p.login("192.0.2.4", "right") }()
				return false
			})
			outage.begin(redis)
			start := time.Now()
			release()
			due := 0.0 // settlements of logins whose charge was answered
			for range sent {
				a := <-answers
				if a.status != http.StatusOK {
					t.Errorf("status %d", a.status)
				}
				if a.header.Get("X-RateLimit-Limit") != "" {
					due++
				}
			}
			if a := p.login("192.0.2.4", "right"); a.status != http.StatusOK {
				t.Errorf("a login without Redis: status %d", a.status)
			}
			if took := time.Since(start); took > answerWithin {
				t.Errorf("the answers took %v", took)
			}
			eventually.Until(t, patience, "the settlements have failed", func() bool {
				return p.metric(`penstock_settlements_total{result="failed"}`) == due
			})
			outage.end(redis)
			stands := p.exhaustLogins(t, redis, page)
			// The login that was admitted while Redis was down is charged at most once.
			if stands < outage.least || stands > 4 {
				t.Errorf("%d units stood, want %d to 4", stands, outage.least)
			}
		})
	}
}

// exhaustLogins waits until Redis counts again, and then sends more wrong passwords than the limit.
// It returns the number of units that were charged before. Requests that a node admitted while
// Redis was down are charged together with the first of these logins.
func (p *process) exhaustLogins(t *testing.T, redis *redistest.Server, page *loginPage) (stood int64) {
	t.Helper()
	eventually.Until(t, patience, "requests are counted again", func() bool {
		return p.login("192.0.2.5", "right").header.Get("X-RateLimit-Limit") != ""
	})
	before := page.wrong.Load()
	p.login("192.0.2.4", "wrong")
	for _, units := range readUsed(t, redis, "rl1:who:login:{ip:192.0.2.4}:*") {
		stood = units - (page.wrong.Load() - before)
	}
	for range 2 * failedLoginsMax {
		p.login("192.0.2.4", "wrong")
	}
	// If a charge was under way when the outage began, the node does not know its outcome, and so
	// may count one unit more than Redis. Then the client loses that unit, but the client never
	// gets more than the limit.
	if all := page.wrong.Load() - before + stood; all > failedLoginsMax || all < failedLoginsMax-1 {
		t.Errorf("%d wrong passwords got through with %d charged, want %d together, or one less", all-stood, stood, failedLoginsMax)
	}
	return stood
}
