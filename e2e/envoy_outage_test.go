// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// outlivesOutages makes the bridge and Redis fail in several ways while requests are sent.
func (s *site) outlivesOutages(t *testing.T, word string) {
	redis := redistest.Start(t)
	b := s.startBridge(t, renamedPolicy(onError(word)), "--redis", redis.URL())
	undecided := "store_unavailable"
	if word == "allow" {
		// the bridge decides from its own memory, and denies clients over their limit
		undecided = ""
	}
	for _, c := range []struct {
		name    string
		counter string // the counter that must grow; "" if none need grow
		fail    func(wait func())
	}{
		{"bridge killed", "bridge_unreachable", func(wait func()) { b.kill(); wait(); b.run(t) }},
		{"bridge frozen", "breaker_open", func(wait func()) { b.freeze(); wait(); b.signal(syscall.SIGCONT) }},
		{"bridge restarted", "", func(wait func()) { b.signal(syscall.SIGTERM); <-b.done; b.run(t); wait() }},
		{"redis killed", undecided, func(wait func()) { redis.Kill(); wait(); redis.Restart() }},
		{"redis frozen", undecided, func(wait func()) { redis.Pause(); wait(); redis.Resume() }},
	} {
		t.Run(c.name, func(t *testing.T) { s.testFailure(t, word, c.counter, c.fail) })
	}
}

// testFailure sends requests before, during and after a failure, and checks the answers.
func (s *site) testFailure(t *testing.T, word, counter string, fail func(wait func())) {
	const outage = 1500 * time.Millisecond
	before := s.envoy.counter("penstock." + counter)
	var got tally
	done := make(chan struct{})
	group := startLoadOn(s.address, 8, &got, atLeastUntil(done, 400))
	eventually.Until(t, 30*time.Second, "the limit is reached", func() bool { return got.refused.Load() > 100 })
	fail(func() {
		<-time.After(outage)
		got.eachIsAnswered(t)
		eventually.Until(t, patience, "penstock."+counter+" grows", func() bool {
			return counter == "" || s.envoy.counter("penstock."+counter) > before
		})
	})
	close(done)
	group.Wait()
	if got.broken.Load() != 0 || word == "allow" && got.serverErrors.Load() != 0 {
		t.Errorf("%d answers of 5xx and %d broken under on_error %s: %s", got.serverErrors.Load(), got.broken.Load(), word, got.summarizeOthers())
	}
	if slowest := time.Duration(got.slowest.Load()); slowest > answerWithin {
		t.Errorf("an answer took %v", slowest)
	}
	if counter != "" && word == "deny" && got.serverErrors.Load() == 0 {
		t.Error("no request was refused while it could not be decided")
	}
	s.awaitLimit(t)
	t.Logf("%d admitted, %d refused, %d of 5xx, slowest %v", got.admitted.Load(), got.refused.Load(), got.serverErrors.Load(),
		time.Duration(got.slowest.Load()))
}

// TestBridgeTakesOverTheSocketOfAKilledOne tests that a bridge can start although a killed bridge
// has left its socket behind.
func TestBridgeTakesOverTheSocketOfAKilledOne(t *testing.T) {
	t.Parallel()
	b := newBridge(t, onError("allow"))
	b.run(t)
	b.kill()
	if _, err := os.Stat(b.listen); err != nil {
		t.Fatalf("the test needs what a killed bridge leaves behind: %v", err)
	}
	b.run(t)
}
