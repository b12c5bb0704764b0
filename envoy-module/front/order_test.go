// SPDX-License-Identifier: Apache-2.0

package front

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// wakeLog records the order in which requests are woken.
type wakeLog struct {
	mu    sync.Mutex
	woken []int // the numbers of the requests
	rung  chan struct{}
}

// numbered is a waker that adds the number of its request to a log. The test calls Announce.
type numbered struct {
	number int
	log    *wakeLog
}

func (*numbered) Waits()          {}
func (*numbered) Unwaits()        {}
func (*numbered) Announces() bool { return true }

func (n *numbered) Wake() {
	n.log.mu.Lock()
	n.log.woken = append(n.log.woken, n.number)
	n.log.mu.Unlock()
	n.log.rung <- struct{}{}
}

// wakeLog.arrive decides a request of the client with the given number. It returns the verdict, and
// the status if the request is denied.
func (l *wakeLog) arrive(t *testing.T, f *Front, number int) (v Verdict, status uint32) {
	t.Helper()
	s := f.NewStream()
	t.Cleanup(s.Release)
	s.Headers = append(s.Headers, request("/")...)
	v = s.Decide(fmt.Sprintf("10.0.%d.%d:4711", number>>8, number&255), emptyHost{}, &numbered{number, l})
	return v, s.Response().Status
}

// openUnwatched opens a front over Redis. Its requests stay in the queue until both release() and
// Announce are called. release may be called several times.
func openUnwatched(t *testing.T, redis *redistest.Server) (f *Front, release func()) {
	f, release = openHeld(t, wideConfig("allow", redis))
	f.store.asker.watched = true // so the method watch, which denies requests after queueTime, is not scheduled
	release = sync.OnceFunc(release)
	t.Cleanup(func() { // a failed test may leave requests in the queue
		release()
		f.Announce()
	})
	return f, release
}

// TestRequestsAreWokenInOrder tests that waiting requests are woken in the order of their arrival,
// whether one call of the store decides them or several.
func TestRequestsAreWokenInOrder(t *testing.T) {
	const requests = 3*batchMax + batchMax/2
	f, release := openUnwatched(t, redistest.Start(t))
	log := &wakeLog{rung: make(chan struct{}, requests)}
	want := make([]int, requests)
	for i := range want {
		want[i] = i
		if v, status := log.arrive(t, f, i); v != Wait {
			t.Fatalf("request %d: verdict %d, status %d", i+1, v, status)
		}
	}
	f.Announce() // exactly one goroutine asks: no other call wakes a second one
	release()
	for range requests {
		<-log.rung
	}
	if !slices.Equal(log.woken, want) {
		t.Errorf("the requests are woken in the order %v", log.woken)
	}
}

// TestWaitingRequestsAreBounded tests that the queue has room for exactly waitingMax requests, and
// that further requests are denied at once. As long as Redis hangs, askersMax goroutines ask about
// batchMax requests each, and the other requests stay in the queue. Afterwards each request is
// woken once.
func TestWaitingRequestsAreBounded(t *testing.T) {
	const taken, further = askersMax * batchMax, 100
	redis := redistest.Start(t)
	f, release := openUnwatched(t, redis)
	redis.Pause()
	t.Cleanup(redis.Resume)
	log := &wakeLog{rung: make(chan struct{}, 2*waitingMax)}
	for i := range waitingMax + further {
		v, status := log.arrive(t, f, i)
		if waits := i < waitingMax; waits != (v == Wait) || !waits && status != http.StatusServiceUnavailable {
			t.Fatalf("request %d: verdict %d, status %d", i+1, v, status)
		}
	}
	a := f.store.asker
	counts := func() (active, queued int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.active, a.waiting.queued
	}
	for range askersUsual + 1 { // the last one schedules the help of the other goroutines
		f.Announce()
	}
	release()
	eventually.Until(t, 20*time.Second, "all goroutines ask", func() bool {
		active, queued := counts()
		if active > askersMax || queued < waitingMax-taken {
			t.Fatalf("%d goroutines ask, and %d requests are in the queue", active, queued)
		}
		return queued == waitingMax-taken
	})
	redis.Resume()
	for range waitingMax {
		<-log.rung
	}
	slices.Sort(log.woken)
	if first := slices.Compact(slices.Clone(log.woken)); len(first) != waitingMax || len(log.rung) != 0 {
		t.Errorf("%d of %d requests are woken, some of them more than once", len(first), waitingMax)
	}
	if v, status := log.arrive(t, f, waitingMax); v != Wait {
		t.Errorf("afterwards: verdict %d, status %d", v, status)
	}
	f.Announce()
	<-log.rung
}
