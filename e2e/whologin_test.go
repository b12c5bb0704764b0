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

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// loginPage is a service that knows one password.
type loginPage struct {
	address      string
	wrong, right atomic.Int64  // logins that came through
	hold         chan struct{} // nil, or what every login waits for
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
		<-time.After(20 * time.Millisecond) // as hashing a password takes: others come in meanwhile
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

// logins limits wrong logins. The deadline is that of the store named STORE.
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

// TestParallelLoginsCannotSlipThrough: fifty wrong passwords at once over two Caddys, five of which may be tried.
func TestParallelLoginsCannotSlipThrough(t *testing.T) {
	t.Parallel()
	const attempts = 50
	redis, page := redistest.Start(t), newLoginPage(t)
	nodes := fleet(t, 2, redis, logins(page, shared))
	var refused, failed atomic.Int64
	var crowd sync.WaitGroup
	for n := range attempts {
		crowd.Go(func() {
			password := "wrong"
			if n%5 == 0 {
				password = "" // answered 403
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
	crowd.Wait()
	if page.wrong.Load() != failedLoginsMax || failed.Load() != failedLoginsMax || refused.Load() != attempts-failedLoginsMax {
		t.Errorf("%d wrong passwords were tried, %d answered, %d refused: want %d tried", page.wrong.Load(), failed.Load(),
			refused.Load(), failedLoginsMax)
	}
	if a := nodes[0].login("192.0.2.1", "right"); a.status != http.StatusTooManyRequests {
		t.Errorf("the right password at last: status %d", a.status)
	}
}

// TestRightLoginsCostNothing: somebody logs in and out many times, on both Caddys, with a wrong password now and then.
func TestRightLoginsCostNothing(t *testing.T) {
	t.Parallel()
	redis, page := redistest.Start(t), newLoginPage(t)
	nodes := fleet(t, 2, redis, logins(page, shared))
	counted := func() int64 { return sum(used(t, redis, "rl1:who:login:*")) }
	for n := range 30 {
		if a := nodes[n%len(nodes)].login("192.0.2.2", "right"); a.status != http.StatusOK {
			t.Fatalf("login %d: status %d", n, a.status)
		}
	}
	await.Until(t, patience, "nothing is charged", func() bool { return counted() == 0 })
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
		await.Until(t, patience, "the wrong ones are charged", func() bool { return counted() == int64(n+1) })
	}
	for _, p := range nodes {
		if a := p.login("192.0.2.2", "wrong"); a.status != http.StatusTooManyRequests || a.number("Retry-After") < 1 {
			t.Errorf("one wrong password too many: status %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
		}
	}
	if a := nodes[0].login("192.0.2.3", "right"); a.status != http.StatusOK {
		t.Errorf("somebody else: status %d", a.status)
	}
}

// open is the head of a Caddyfile that lets everybody through while Redis is away.
var open = strings.NewReplacer("deny", "allow", " {\n\t\t\ttimeout 5s\n\t\t}", "").Replace(shared)

// TestRedisFailsWithLoginsOpen: Redis is away when the answers come. Clients notice nothing, and what could not be given
// back stands as the charge, once: nobody is charged twice, and nobody gets more attempts than there are.
func TestRedisFailsWithLoginsOpen(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct {
		begin, end func(r *redistest.Server)
		least      int64 // what stands afterwards
	}{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart, 3},
		"frozen": {(*redistest.Server).Pause, (*redistest.Server).Resume, 0}, // what was sent is done when it wakes up
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			page := newLoginPage(t)
			page.hold = make(chan struct{})
			release := sync.OnceFunc(func() { close(page.hold) })
			p := fleet(t, 1, redis, logins(page, open))[0]
			t.Cleanup(release) // before Caddy and the page end, which wait for their answers
			answers, sent := make(chan answer, 10*failedLoginsMax), 0
			await.Until(t, patience, "three are charged and wait for the service", func() bool {
				if page.right.Load() != int64(sent) {
					return false
				}
				if sum(used(t, redis, "rl1:who:login:*")) == 3 {
					return true
				}
				sent++ // one more than three if Redis was too slow for one, so that it was not charged
				go func() { answers <- p.login("192.0.2.4", "right") }()
				return false
			})
			outage.begin(redis)
			start := time.Now()
			release()
			due := 0.0 // of those whose charge was answered
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
			await.Until(t, patience, "the settlements have failed", func() bool {
				return p.metric(`penstock_settlements_total{result="failed"}`) == due
			})
			outage.end(redis)
			stands := p.triesAll(t, redis, page)
			if stands < outage.least || stands > 3 {
				t.Errorf("%d units stood, want %d to 3", stands, outage.least)
			}
		})
	}
}

// triesAll waits until Redis is asked again, and then tries wrong passwords until none gets through. It returns how many
// units were charged before.
func (p *process) triesAll(t *testing.T, redis *redistest.Server, page *loginPage) (stood int64) {
	t.Helper()
	await.Until(t, patience, "requests are counted again", func() bool {
		return p.login("192.0.2.5", "right").header.Get("X-RateLimit-Limit") != ""
	})
	for _, units := range used(t, redis, "rl1:who:login:{ip:192.0.2.4}:*") {
		stood = units
	}
	before := page.wrong.Load()
	for range 2 * failedLoginsMax {
		p.login("192.0.2.4", "wrong")
	}
	// The login that was let through without Redis is charged with the next one, or is not where its charge was given back.
	if tried := page.wrong.Load() - before; tried > failedLoginsMax-stood || tried < failedLoginsMax-stood-1 {
		t.Errorf("%d wrong passwords got through with %d charged, want %d together", tried, stood, failedLoginsMax)
	}
	return stood
}
