// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	penstockcaddy "github.com/penstock/penstock/caddy"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestHandleErrorsTakesOver(t *testing.T) {
	s := start(t, `:PORT {
		penstock 1/30d
		handle_errors 429 {
			respond "slow down: {err.status_code} {http.penstock.rule} {http.penstock.retry_after}"
		}
		respond "ok"
	}`)
	s.get("/")
	r := s.get("/")
	equal(t, "status", strconv.Itoa(r.StatusCode), "429")
	if !strings.HasPrefix(r.body, "slow down: 429 default ") {
		t.Errorf("body: %q", r.body)
	}
	r.wantField(t, "X-RateLimit-Limit", "1")
	if r.Header.Get("Retry-After") == "" {
		t.Error("Retry-After is missing")
	}
}

func TestErrorRoutesForSomethingElseLeaveTheProblem(t *testing.T) {
	s := start(t, `http://a.test:PORT {
		penstock 1/30d
		respond "ok"
	}
	http://b.test:PORT {
		handle_errors {
			respond "b"
		}
		error 404
	}
	http://c.test:PORT {
		penstock 1/30d
		handle_errors 404 {
			respond "c"
		}
		respond "ok"
	}`)
	for _, host := range []string{"a.test", "c.test"} {
		equal(t, host, s.statuses(2, "/", "Host", host), "200 429")
		r := s.get("/", "Host", host)
		r.wantField(t, "Content-Type", "application/problem+json")
		if !strings.Contains(r.body, `"Rate limit exceeded"`) {
			t.Errorf("%s: body %q", host, r.body)
		}
	}
	equal(t, "b's own", s.get("/", "Host", "b.test").body, "b")
}

// TestAHandlerInErrorRoutesKeepsThem uses eight handlers. Because eight is a power of two,
// appending to their list must reallocate it.
func TestAHandlerInErrorRoutesKeepsThem(t *testing.T) {
	const count = 8
	var sites strings.Builder
	for i := range count {
		fmt.Fprintf(&sites, `http://site%d.test:PORT {
			handle_errors {
				penstock 1/30d
				respond "%d"
			}
			error 404
		}
		`, i, i)
	}
	s := start(t, sites.String())
	for i := range count {
		host := fmt.Sprintf("site%d.test", i)
		r := s.get("/", "Host", host)
		equal(t, host, r.body, strconv.Itoa(i))
		r.wantField(t, "X-RateLimit-Limit", "1")
		r = s.get("/", "Host", host)
		equal(t, host, strconv.Itoa(r.StatusCode), "429")
		r.wantField(t, "Content-Type", "application/problem+json")
	}
}

func TestErrorPagesOfAnUpstreamKeepTheFields(t *testing.T) {
	address := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "77")
		w.Header().Set("X-RateLimit-Remaining", "66")
		w.Header().Set("X-RateLimit-Reset", "9")
		w.Header().Set("RateLimit", `"up";r=1`)
		w.Header().Set("Retry-After", "1")
		fmt.Fprint(w, "a page")
	})
	s := start(t, `:PORT {
		penstock 2/30d
		error /missing 404
		respond "ok"
		handle_errors {
			reverse_proxy `+address+`
		}
	}`)
	for _, path := range []string{"/missing", "/"} {
		remaining := "1"
		if path == "/" {
			remaining = "0"
			s.statuses(1, path)
		}
		r := s.get(path)
		equal(t, "body", r.body, "a page")
		r.wantField(t, "X-RateLimit-Limit", "2")
		r.wantField(t, "X-RateLimit-Remaining", remaining)
		if got := r.Header.Values("X-RateLimit-Reset"); len(got) != 1 || got[0] == "9" {
			t.Errorf("X-RateLimit-Reset: %q", got)
		}
		if got := strings.Join(r.Header.Values("RateLimit"), " | "); !strings.HasPrefix(got, `"default";r=`+remaining) ||
			!strings.HasSuffix(got, `, "up";r=1`) || strings.Count(got, "default") != 1 {
			t.Errorf("RateLimit: %q", got)
		}
		if got := r.Header.Values("Retry-After"); len(got) != 1 || (got[0] == "1") != (path == "/missing") {
			t.Errorf("Retry-After: %q", got)
		}
	}
}

func TestPlaceholders(t *testing.T) {
	s := start(t, `:PORT {
		penstock /limited 2/30d
		respond "[{http.penstock.decision}] [{http.penstock.rule}] [{http.penstock.limit}] [{http.penstock.remaining}] [{http.penstock.retry_after}] [{http.penstock.client}]"
	}`)
	equal(t, "limited", s.get("/limited").body, "[allowed] [default] [2] [1] [] [127.0.0.1]")
	if got := s.get("/other").body; strings.Contains(got, "allowed") {
		t.Errorf("a request that passed no handler: %s", got)
	}
}

// TestPlaceholdersOfARequestWithoutARule: the client is identified even if no rule applies, under
// any number of policies.
func TestPlaceholdersOfARequestWithoutARule(t *testing.T) {
	const site = `:PORT {
		penstock {
			rule site 2/30d {
				match path /limited
			}
		}
		penstock /limited {
			rule never 2/30d {
				match path /never
			}
		}
		respond "[{http.penstock.decision}] [{http.penstock.rule}] [{http.penstock.client}] [{http.penstock.identity}]"
	}`
	for name, app := range map[string]string{"one policy": "", "two policies": `{
		penstock {
			name shop
			rule app 2/30d {
				match path /app
			}
		}
	}
	`} {
		t.Run(name, func(t *testing.T) {
			s := start(t, app+site)
			equal(t, "without a rule", s.get("/other").body, "[none] [] [127.0.0.1] [ip]")
			equal(t, "a further handler without one", s.get("/limited").body, "[allowed] [site] [127.0.0.1] [ip]")
		})
	}
}

func TestReloadKeepsCountersAndChangesLimits(t *testing.T) {
	site := func(limit string) string {
		return ":PORT {\n penstock " + limit + "\n respond ok\n}"
	}
	s := start(t, site("3/30d"))
	equal(t, "before", s.statuses(2, "/"), "200 200")
	if err := s.load(site("4/30d")); err != nil {
		t.Fatal(err)
	}
	equal(t, "after", s.statuses(3, "/"), "200 200 429")
	if err := s.load(site("4/30")); err == nil {
		t.Fatal("a broken configuration was taken")
	}
	if err := s.loadJSON([]byte(`{"apps":{"http":{"servers":{"srv0":{"listen":[":0"],"routes":[{"handle":[{"handler":"penstock","rules":[{"limit":"4/30"}]}]}]}}}}}`)); err == nil {
		t.Fatal("broken JSON was taken")
	}
	equal(t, "after a refused reload", s.statuses(1, "/"), "429")
}

func TestMetricsAfterARejectedReload(t *testing.T) {
	s := start(t, ":PORT {\n penstock 3/30d\n respond ok\n}")
	equal(t, "before", s.statuses(1, "/"), "200")
	// Caddy checks the listener last, after the handler has opened its store and registered its
	// metrics.
	if err := s.loadJSON([]byte(`{"apps":{"penstock":{"store":{"counters_max":77}},"http":{"servers":{"a":{"listen":[":99999"],
		"routes":[{"handle":[{"handler":"penstock","rules":[{"limit":"1/1m"}]}]}]}}}}}`)); err == nil {
		t.Fatal("a broken configuration was taken")
	}
	if metrics := s.metrics(); !strings.Contains(metrics, "\npenstock_counters 1\n") {
		t.Errorf("the metrics are not those of the store in use: %s", grep(metrics, "penstock_counters"))
	}
}

func TestReloadUnderTraffic(t *testing.T) {
	const limit, clients, each = 500, 8, 150
	site := ":PORT {\n penstock 500/30d\n respond ok\n}\n# "
	s := start(t, site)
	var admitted, failed atomic.Int64
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for range each {
				response, err := client.Get("http://127.0.0.1:" + strconv.Itoa(s.port) + "/")
				switch {
				case err != nil:
					failed.Add(1)
				case response.StatusCode == http.StatusOK:
					admitted.Add(1)
				}
				if err == nil {
					response.Body.Close()
				}
			}
		})
	}
	for i := range 10 {
		if err := s.load(fmt.Sprintf("{\n grace_period %ds\n}\n%s", 5+i, site)); err != nil {
			t.Fatal(err)
		}
	}
	group.Wait()
	// A connection closed by a reload loses its answer but not its charge: the limit is never
	// exceeded.
	if got := admitted.Load(); got > limit || got < limit-failed.Load() {
		t.Errorf("admitted %d of %d with %d broken connections, want exactly %d", got, clients*each, failed.Load(), limit)
	}
}

func TestRedisCountsForSeveralAndSurvives(t *testing.T) {
	redis := redistest.Start(t)
	config := func(onError string) string {
		return `{
			penstock {
				name shop
				store redis {env.PENSTOCK_TEST_REDIS} {
					timeout 200ms
				}
				on_error ` + onError + `
			}
		}
		:PORT {
			penstock 3/30d
			respond "{http.penstock.decision}"
		}`
	}
	t.Setenv("PENSTOCK_TEST_REDIS", redis.URL())
	s := start(t, config("allow"))
	seen := s.counts()
	equal(t, "redis", s.statuses(1, "/"), "200")
	keys, err := redis.Client().Keys(context.Background(), "rl1:[^~]*").Result() // counters
	if err != nil || len(keys) != 1 || !strings.HasPrefix(keys[0], "rl1:shop:default:") {
		t.Errorf("keys: %q, %v", keys, err)
	}
	redis.Kill()
	// This process knows that one unit is used, so it admits the rest of the limit by itself.
	r := s.get("/")
	equal(t, "down", r.body, "degraded_allowed")
	r.wantField(t, "X-RateLimit-Limit", "")
	equal(t, "down", s.statuses(3, "/"), "200 429 429")
	if err := s.load(config("deny")); err != nil {
		t.Fatalf("Redis may be down when the configuration is loaded: %v", err)
	}
	r = s.get("/")
	equal(t, "deny", strconv.Itoa(r.StatusCode), "503")
	if !strings.Contains(r.body, "temporary-reduced-capacity") {
		t.Errorf("body: %s", r.body)
	}
	seen.wantGrown(t, map[string]float64{
		`penstock_requests_total{outcome="degraded_allowed",policy="shop",rule="default"}`: 2,
		"penstock_leased_decisions_total":                                                  0,
		"penstock_lease_units_returned_total":                                              0,
	})
	metrics := s.metrics()
	for _, word := range []string{"penstock_store_errors_total{", "penstock_breaker_state", `penstock_redis_breaker_state{server="`,
		"penstock_store_calls_total ", "penstock_remembered_refusals_total ", "penstock_lease_units_in_hand 0"} {
		if !strings.Contains(metrics, word) {
			t.Errorf("the metrics lack %s: %s", word, grep(metrics, "penstock"))
		}
	}
	redis.Restart()
	deadline := time.Now().Add(10 * time.Second)
	for s.get("/").StatusCode != http.StatusOK {
		if time.Now().After(deadline) {
			t.Fatal("limits do not hold again after Redis is back")
		}
	}
}

// listener is a handler of Caddy's events that records them.
type listener struct{}

var heard = make(chan caddy.Event, 16)

func init() { caddy.RegisterModule(listener{}) }

func (listener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.penstock_test", New: func() caddy.Module { return new(listener) }}
}

func (listener) Handle(_ context.Context, e caddy.Event) error {
	heard <- e
	return nil
}

var _ caddyevents.Handler = listener{}

func TestDenialIsAnEvent(t *testing.T) {
	s := start(t, ":PORT {\n respond ok\n}")
	port := strconv.Itoa(s.port)
	if err := s.loadJSON([]byte(`{"apps":{
		"events":{"subscriptions":[{"events":["penstock_denied"],"handlers":[{"handler":"penstock_test"}]}]},
		"http":{"servers":{"main":{"listen":[":` + port + `"],"routes":[{"handle":[
			{"handler":"penstock","rules":[{"limit":"1/30d"}]},
			{"handler":"static_response","body":"ok"}]}]}}}}}`)); err != nil {
		t.Fatal(err)
	}
	// The former configuration may still answer the first requests.
	waitUntil(t, "a request is denied", func() bool { return s.get("/").StatusCode == http.StatusTooManyRequests })
	var e caddy.Event
	select {
	case e = <-heard:
	case <-time.After(10 * time.Second):
		t.Fatal("no event is emitted")
	}
	equal(t, "event", e.Name(), penstockcaddy.DeniedEvent)
	equal(t, "client", fmt.Sprint(e.Data["client"]), "127.0.0.1")
	equal(t, "rule", fmt.Sprint(e.Data["rule"]), "default")
	equal(t, "events", strconv.Itoa(len(heard)), "0")
}

// TestUsersAreKnownAfterAuthentication tests the order of directives that the reference states.
func TestUsersAreKnownAfterAuthentication(t *testing.T) {
	site := `:PORT {
		basic_auth {
			bob $2a$04$GS/Le2PDNtJxd81Dn8bAfuB9bbt4CXiWPDVfVEL2bpSzgzusRIQlm
		}
		penstock 9/30d {
			identify attr http.auth.user.id
			identify ip
		}
		respond "{http.penstock.client}"
	}`
	s := start(t, site)
	login := []string{"Authorization", "Basic Ym9iOmhpY2N1cA=="} // bob:hiccup
	equal(t, "before", s.get("/", login...).body, "127.0.0.1")
	if err := s.load("{\n order penstock after basic_auth\n}\n" + site); err != nil {
		t.Fatal(err)
	}
	equal(t, "after", s.get("/", login...).body, "bob")
}

func TestIdentifyAndForwardedClients(t *testing.T) {
	s := start(t, `{
		servers {
			trusted_proxies static 127.0.0.1/32
			trusted_proxies_strict
		}
	}
	:PORT {
		penstock /ip 1/30d
		penstock /user 1/30d {
			identify header X-User unverified
			identify ip
		}
		penstock /attr {
			rule tenant 1/30d {
				per attr:http.request.uri.query.t
			}
		}
		respond "{http.penstock.client}"
	}`)
	equal(t, "first", s.get("/ip", "X-Forwarded-For", "198.51.100.1").body, "198.51.100.1")
	equal(t, "again", s.statuses(1, "/ip", "X-Forwarded-For", "198.51.100.1"), "429")
	equal(t, "another", s.statuses(1, "/ip", "X-Forwarded-For", "198.51.100.2"), "200")
	equal(t, "a user", s.get("/user", "X-User", "ann").body, "ann")
	equal(t, "the user again", s.statuses(1, "/user", "X-User", "ann", "X-Forwarded-For", "198.51.100.3"), "429")
	equal(t, "without a user", s.get("/user").body, "127.0.0.1")
	equal(t, "attr", s.statuses(2, "/attr?t=a"), "200 429")
	equal(t, "another attr", s.statuses(1, "/attr?t=b"), "200")
}
