// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

const throttlePolicy = `name: shop
on_error: ON_ERROR
rules:
  - {name: all, limit: 100000/31d}
  - {name: queue, match: {path: /queue}, limit: 1/2s burst 1, action: throttle, throttle: {max_delay: 10s, max_waiting: 5000}}
  - {name: slow, match: {path: /slow}, limit: 1/6s burst 1, action: throttle, throttle: {max_delay: 6s, max_waiting: 100}}
`

// answersThrottled tests that a throttle rule delays requests. If the bridge freezes while they
// wait, they wait no longer than max_delay plus the deadline.
func (s *site) answersThrottled(t *testing.T, word string) {
	const maxDelay = 6 * time.Second
	b := s.startBridge(t, strings.Replace(throttlePolicy, "ON_ERROR", word, 1))
	s.awaitDecided(t)
	start := time.Now()
	first, second := s.get(t, "/queue"), s.get(t, "/queue")
	if took := time.Since(start); first.status != http.StatusOK || second.status != http.StatusOK || took < 1900*time.Millisecond {
		t.Errorf("two requests of one in two seconds: status %d and %d after %v", first.status, second.status, took)
	}
	s.get(t, "/slow") // the turn of the next request is in six seconds
	const waiting = 2
	answers := make(chan answer, waiting)
	start = time.Now()
	for range waiting {
		go func() {
			a, err := ask(new(http.Client), "http://"+s.address+"/slow")
			if err != nil {
				a.body = err.Error()
			}
			answers <- a
		}()
	}
	eventually.Until(t, patience, "they wait", func() bool { return s.envoy.stat("http."+s.name+".downstream_rq_active") == waiting })
	b.freeze()
	defer b.signal(syscall.SIGCONT)
	passed := 0
	for range waiting {
		a := <-answers
		if a.status == http.StatusOK {
			passed++
		} else if word == "allow" && a.status == http.StatusTooManyRequests {
			continue // with on_error: allow, the limit of one request is still enforced
		}
		s.checkDegraded(t, a, word)
	}
	if word == "allow" && passed != 1 {
		t.Errorf("%d were let pass by a limit of one", passed)
	}
	if took := time.Since(start); took > maxDelay+answerWithin {
		t.Errorf("the last one waited %v", took)
	}
	b.signal(syscall.SIGCONT)
	s.awaitDecided(t)
}

// decidesBesideThrottled tests a throttle rule under which more requests wait than Envoy permits
// concurrent calls by default, which is 1024. Each waiting request is admitted at its turn or
// denied in time, and other requests are decided as usual.
func (s *site) decidesBesideThrottled(t *testing.T, word string) {
	// The delay is so long that all requests arrive before the first one is denied.
	const waiting, maxDelay = 1200, 10 * time.Second
	// All calls arrive at once, and calls that a busy bridge has not read yet count towards
	// --calls-max.
	s.startBridge(t, strings.Replace(throttlePolicy, "ON_ERROR", word, 1), "--calls-max", "4096")
	s.awaitDecided(t)
	undecided := func() (n int) {
		for _, why := range []string{"bridge_timeout", "bridge_unreachable", "bridge_unanswered", "store_unavailable", "breaker_open", "waiting_full"} {
			n += s.envoy.counter("penstock." + why)
		}
		return n
	}
	before := undecided()
	s.get(t, "/queue")
	var got tally
	var group sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range waiting {
		group.Go(func() { got.ask(client, "http://"+s.address+"/queue") })
	}
	eventually.Until(t, maxDelay, "they wait", func() bool { return s.envoy.stat("http."+s.name+".downstream_rq_active") > 1100 })
	if a := s.get(t, "/"); a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
		t.Errorf("with a full queue: status %d, %v", a.status, a.header)
	}
	group.Wait()
	admitted, slowest := got.admitted.Load(), time.Duration(got.slowest.Load())
	if admitted == 0 || admitted+got.refused.Load() != waiting || slowest > maxDelay+answerWithin {
		t.Errorf("%d of %d were admitted and %d refused, after %v at most; others: %s\n%s", admitted, waiting, got.refused.Load(), slowest,
			got.summarizeOthers(), s.envoy.read("/stats?usedonly&filter=^http."+s.name+"[.]downstream"))
	}
	if n := undecided() - before; n != 0 {
		t.Errorf("%d were decided by on_error; the counters are\n%s", n, s.envoy.read("/stats?filter=wasmcustom"))
	}
}

// keepsDeadlinesAfterSilence tests that deadlines are kept although Envoy rarely calls a filter
// that was idle. A request that waits until another call ends is decided with the next call.
func (s *site) keepsDeadlinesAfterSilence(t *testing.T, word string) {
	const deadline, later, connections = 4 * time.Second, 500 * time.Millisecond, 8
	// On a busy machine, two consecutive calls may take this long.
	const most = 2*(deadline+time.Second) + 500*time.Millisecond
	b := s.startBridge(t, renamedPolicy(onError(word)))
	s.awaitDecided(t)
	<-time.After(2 * time.Second)
	b.freeze()
	defer b.signal(syscall.SIGCONT)
	var group sync.WaitGroup
	// The second half of the requests becomes part of the next call of its worker, which begins
	// when the first call ends.
	for i := range 2 * connections {
		group.Go(func() {
			<-time.After(time.Duration(i/connections) * later)
			start := time.Now()
			fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			a, err := ask(fresh, "http://"+s.address+"/")
			if err != nil {
				t.Error(err)
				return
			}
			s.checkDegraded(t, a, word)
			if took := time.Since(start); took < deadline-later-250*time.Millisecond || took > most {
				t.Errorf("request %d was answered after %v", i, took)
			}
		})
	}
	group.Wait()
}
