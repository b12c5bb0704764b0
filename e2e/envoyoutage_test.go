// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// outagePolicy counts so that a limit outlives any test.
const outagePolicy = `name: shop
on_error: ON_ERROR
rules: [{name: all, limit: 100/31d}]
`

// onError is the policy of the outages with its word for them.
func onError(word string) string { return strings.ReplaceAll(outagePolicy, "ON_ERROR", word) }

// TestEnvoyOutages: whatever becomes of the bridge and of Redis, requests are answered soon, by the upstream or with 503 as the
// policy says, the reason is counted, and limits hold again by themselves.
func TestEnvoyOutages(t *testing.T) {
	absent := map[string]*site{"allow": {set: "on_error: allow"}, "deny": {set: "on_error: deny"}}
	shared := map[string]*site{"allow": {}, "deny": {}}
	startEnvoy(t, wasm(t), nil, absent["allow"], absent["deny"], shared["allow"], shared["deny"])
	for word, s := range absent {
		t.Run("absent at start/"+word, func(t *testing.T) { s.isAbsentAtStart(t, word) })
	}
	for word, s := range shared {
		redis := redistest.Start(t)
		b := s.startBridge(t, onError(word), "--redis", redis.URL())
		for _, c := range []struct {
			name    string
			counter string // one of those that must grow; "" where the outage may be too short to be seen
			fail    func(wait func())
		}{
			{"bridge killed", "bridge_unreachable", func(wait func()) { b.kill(); wait(); b.run(t) }},
			{"bridge frozen", "breaker_open", func(wait func()) { b.signal(syscall.SIGSTOP); wait(); b.signal(syscall.SIGCONT) }},
			{"bridge restarted", "", func(wait func()) { b.signal(syscall.SIGTERM); <-b.done; b.run(t); wait() }},
			{"redis killed", "store_unavailable", func(wait func()) { redis.Kill(); wait(); redis.Restart() }},
			{"redis frozen", "store_unavailable", func(wait func()) { redis.Pause(); wait(); redis.Resume() }},
		} {
			t.Run(c.name+"/"+word, func(t *testing.T) { s.survives(t, word, c.counter, c.fail) })
		}
	}
}

// isAbsentAtStart: nothing is limited while there has been no bridge yet, or everything is refused; then a bridge comes.
func (s *site) isAbsentAtStart(t *testing.T, word string) {
	before := s.envoy.counter("penstock.degraded")
	for range 20 {
		start := time.Now()
		s.isDegraded(t, s.get(t, "/"), word)
		if took := time.Since(start); took > answerWithin {
			t.Errorf("an answer took %v", took)
		}
	}
	if grown := s.envoy.counter("penstock.degraded") - before; grown != 20 {
		t.Errorf("%d of 20 requests were counted as degraded", grown)
	}
	s.startBridge(t, onError(word))
	s.holdsAgain(t)
}

// isDegraded checks an answer that was given without the bridge.
func (s *site) isDegraded(t *testing.T, a answer, word string) {
	t.Helper()
	switch {
	case word == "allow" && (a.status != http.StatusOK || a.body != "ok"):
		t.Errorf("status %d, %q, want the upstream's answer", a.status, a.body)
	case word == "deny" && (a.status != http.StatusServiceUnavailable ||
		a.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(a.body, `"status":503`)):
		t.Errorf("status %d, %v, %q, want a problem of status 503", a.status, a.header, a.body)
	}
	if got := a.header.Get("RateLimit"); got != "" {
		t.Errorf("an answer without the bridge tells of a limit: %q", got)
	}
}

// survives sends requests all the while something fails.
func (s *site) survives(t *testing.T, word, counter string, fail func(wait func())) {
	const outage = 1500 * time.Millisecond
	before := s.envoy.counter("penstock." + counter)
	var got tally
	done := make(chan struct{})
	group := crowdAt(s.address, 16, &got, atLeastUntil(done, 1_000))
	eventually(t, 30*time.Second, "the limit is reached", func() bool { return got.refused.Load() > 100 })
	fail(func() { <-time.After(outage) })
	close(done)
	group.Wait()
	if got.broken.Load() != 0 || word == "allow" && got.serverErrors.Load() != 0 {
		t.Errorf("%d answers of 5xx and %d broken under on_error %s", got.serverErrors.Load(), got.broken.Load(), word)
	}
	if slowest := time.Duration(got.slowest.Load()); slowest > answerWithin {
		t.Errorf("an answer took %v", slowest)
	}
	if counter != "" {
		if s.envoy.counter("penstock."+counter) == before {
			t.Errorf("penstock.%s has not grown; the counters are\n%s", counter, s.envoy.read("/stats?filter=wasmcustom"))
		}
		if word == "deny" && got.serverErrors.Load() == 0 {
			t.Error("no request was refused while it could not be decided")
		}
	}
	s.holdsAgain(t)
	t.Logf("%d admitted, %d refused, %d of 5xx, slowest %v", got.admitted.Load(), got.refused.Load(), got.serverErrors.Load(),
		time.Duration(got.slowest.Load()))
}

// holdsAgain waits until requests are counted again, and then refused.
func (s *site) holdsAgain(t *testing.T) {
	t.Helper()
	const beyondTheLimit = 100 + 100
	eventually(t, 10*time.Second, "requests are counted again", func() bool { return s.get(t, "/").header.Get("RateLimit") != "" })
	for range beyondTheLimit {
		if s.get(t, "/").status == http.StatusTooManyRequests {
			return
		}
	}
	t.Error("the limit does not hold again")
}

// TestEnvoyStaysWhenBridgesLeaveTheirSocket: a bridge that was killed leaves its socket behind, and the next one takes it over.
func TestBridgeTakesOverTheSocketOfAKilledOne(t *testing.T) {
	s := &site{bridge: t.TempDir() + "/s"}
	b := &bridge{policy: renamed(t, t.TempDir()+"/policy.yaml"), listen: s.bridge}
	b.policy.edit(onError("allow"))
	b.run(t)
	b.kill()
	if _, err := os.Stat(s.bridge); err != nil {
		t.Fatalf("the test needs what a killed bridge leaves behind: %v", err)
	}
	b.run(t)
}
