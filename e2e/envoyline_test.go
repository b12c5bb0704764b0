// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

const linePolicy = `name: shop
on_error: ON_ERROR
rules:
  - {name: all, limit: 100000/31d}
  - {name: line, match: {path: /line}, limit: 1/2s burst 1, action: throttle, throttle: {max_delay: 4s, max_waiting: 100}}
`

// answersThoseInLine: a throttle rule makes requests wait for their turn, and a bridge that freezes meanwhile makes them wait for
// no longer than max_delay and the deadline.
func (s *site) answersThoseInLine(t *testing.T, word string) {
	const maxDelay = 4 * time.Second
	b := s.startBridge(t, strings.Replace(linePolicy, "ON_ERROR", word, 1))
	s.isDecided(t)
	start := time.Now()
	first, second := s.get(t, "/line"), s.get(t, "/line")
	if took := time.Since(start); first.status != http.StatusOK || second.status != http.StatusOK || took < 1900*time.Millisecond || took > maxDelay {
		t.Errorf("two requests of one in two seconds: status %d and %d after %v", first.status, second.status, took)
	}
	const line = 2
	answers := make(chan answer, line)
	start = time.Now()
	for range line {
		go func() {
			a, err := ask(new(http.Client), "http://"+s.address+"/line")
			if err != nil {
				a.body = err.Error()
			}
			answers <- a
		}()
	}
	await.Until(t, 5*time.Second, "they wait", func() bool { return s.envoy.stat("http."+s.name+".downstream_rq_active") == line })
	b.freeze()
	defer b.signal(syscall.SIGCONT)
	for range line {
		s.isDegraded(t, <-answers, word)
	}
	if took := time.Since(start); took > maxDelay+answerWithin {
		t.Errorf("the last one waited %v", took)
	}
	b.signal(syscall.SIGCONT)
	s.isDecided(t)
}

// decidesBesideALine: more requests wait for a throttle rule than the 1024 calls that Envoy lets be under way by default; each has its turn or is
// refused in time, and others are decided as if nobody waited.
func (s *site) decidesBesideALine(t *testing.T, word string) {
	const line, maxDelay = 1200, 4 * time.Second
	// They come at once, and those whose calls a busy bridge has not looked at yet do not wait yet.
	s.startBridge(t, strings.NewReplacer("ON_ERROR", word, "max_waiting: 100", "max_waiting: 5000").Replace(linePolicy), "--calls-max", "4096")
	s.isDecided(t)
	degraded := s.envoy.counter("penstock.degraded")
	s.get(t, "/line")
	var got tally
	var group sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range line {
		group.Go(func() { got.ask(client, "http://"+s.address+"/line") })
	}
	await.Until(t, maxDelay, "they wait", func() bool { return s.envoy.stat("http."+s.name+".downstream_rq_active") > 1100 })
	if a := s.get(t, "/"); a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
		t.Errorf("beside a line: status %d, %v", a.status, a.header)
	}
	group.Wait()
	admitted, slowest := got.admitted.Load(), time.Duration(got.slowest.Load())
	if admitted == 0 || admitted+got.refused.Load() != line || slowest > maxDelay+answerWithin {
		t.Errorf("%d of %d were admitted and %d refused, after %v at most", admitted, line, got.refused.Load(), slowest)
	}
	if n := s.envoy.counter("penstock.degraded") - degraded; n != 0 {
		t.Errorf("%d were decided by on_error; the counters are\n%s", n, s.envoy.read("/stats?filter=wasmcustom"))
	}
}

// keepsDeadlinesAfterSilence: without requests the filter is hardly called. When some come, their deadlines hold all the same,
// also those of requests that wait for a call of others to end.
func (s *site) keepsDeadlinesAfterSilence(t *testing.T, word string) {
	const deadline, later, connections = time.Second, 300 * time.Millisecond, 8
	b := s.startBridge(t, onError(word))
	s.isDecided(t)
	<-time.After(2 * time.Second)
	b.freeze()
	defer b.signal(syscall.SIGCONT)
	var group sync.WaitGroup
	for i := range 2 * connections { // half of them ride in the next call of their worker, which begins when the first is over
		group.Go(func() {
			<-time.After(time.Duration(i/connections) * later)
			start := time.Now()
			fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			a, err := ask(fresh, "http://"+s.address+"/")
			if err != nil {
				t.Error(err)
				return
			}
			s.isDegraded(t, a, word)
			if took := time.Since(start); took < deadline-50*time.Millisecond || took > deadline+400*time.Millisecond {
				t.Errorf("request %d was answered after %v", i, took)
			}
		})
	}
	group.Wait()
}
