// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
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
	b.signal(syscall.SIGSTOP)
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
