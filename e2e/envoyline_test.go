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
  - {name: line, match: {path: /line}, limit: 1/2s burst 1, action: throttle, throttle: {max_delay: 10s, max_waiting: 5000}}
  - {name: slow, match: {path: /slow}, limit: 1/6s burst 1, action: throttle, throttle: {max_delay: 6s, max_waiting: 100}}
`

// answersThoseInLine: a throttle rule makes requests wait for their turn, and a bridge that freezes meanwhile makes them wait for
// no longer than max_delay and the deadline.
func (s *site) answersThoseInLine(t *testing.T, word string) {
	const maxDelay = 6 * time.Second
	b := s.startBridge(t, strings.Replace(linePolicy, "ON_ERROR", word, 1))
	s.isDecided(t)
	start := time.Now()
	first, second := s.get(t, "/line"), s.get(t, "/line")
	if took := time.Since(start); first.status != http.StatusOK || second.status != http.StatusOK || took < 1900*time.Millisecond {
		t.Errorf("two requests of one in two seconds: status %d and %d after %v", first.status, second.status, took)
	}
	s.get(t, "/slow") // the next has its turn in six seconds
	const line = 2
	answers := make(chan answer, line)
	start = time.Now()
	for range line {
		go func() {
			a, err := ask(new(http.Client), "http://"+s.address+"/slow")
			if err != nil {
				a.body = err.Error()
			}
			answers <- a
		}()
	}
	await.Until(t, patience, "they wait", func() bool { return s.envoy.stat("http."+s.name+".downstream_rq_active") == line })
	b.freeze()
	defer b.signal(syscall.SIGCONT)
	passed := 0
	for range line {
		a := <-answers
		if a.status == http.StatusOK {
			passed++
		} else if word == "allow" && a.status == http.StatusTooManyRequests {
			continue // what on_error lets pass ends at the limit, which is one
		}
		s.isDegraded(t, a, word)
	}
	if word == "allow" && passed != 1 {
		t.Errorf("%d were let pass by a limit of one", passed)
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
	const line, maxDelay = 1200, 10 * time.Second // so long that all of them have come before the first is refused
	// They come at once, and those whose calls a busy bridge has not looked at yet do not wait yet.
	s.startBridge(t, strings.Replace(linePolicy, "ON_ERROR", word, 1), "--calls-max", "4096")
	s.isDecided(t)
	undecided := func() (n int) {
		for _, why := range []string{"bridge_timeout", "bridge_unreachable", "bridge_unanswered", "store_unavailable", "breaker_open", "waiting_full"} {
			n += s.envoy.counter("penstock." + why)
		}
		return n
	}
	before := undecided()
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
		t.Errorf("%d of %d were admitted and %d refused, after %v at most; others: %s\n%s", admitted, line, got.refused.Load(), slowest,
			got.others(), s.envoy.read("/stats?usedonly&filter=^http."+s.name+"[.]downstream"))
	}
	if n := undecided() - before; n != 0 {
		t.Errorf("%d were decided by on_error; the counters are\n%s", n, s.envoy.read("/stats?filter=wasmcustom"))
	}
}

// keepsDeadlinesAfterSilence: without requests the filter is hardly called. When some come, the deadlines of their calls hold all the
// same, and who waits for a call of others to end is decided with the next.
func (s *site) keepsDeadlinesAfterSilence(t *testing.T, word string) {
	const deadline, later, connections = 4 * time.Second, 500 * time.Millisecond, 8
	const most = 2*(deadline+time.Second) + 500*time.Millisecond // two calls, the second after the first, of a busy Envoy
	b := s.startBridge(t, anew(onError(word)))
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
			if took := time.Since(start); took < deadline-50*time.Millisecond || took > most {
				t.Errorf("request %d was answered after %v", i, took)
			}
		})
	}
	group.Wait()
}
