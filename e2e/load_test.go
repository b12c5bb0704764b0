// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// tally is what a crowd of requests got.
type tally struct {
	admitted, refused, broken atomic.Int64
	serverErrors              atomic.Int64
	slowest                   atomic.Int64 // nanoseconds

	mu    sync.Mutex
	each  []*atomic.Int64 // answers that each client of a crowd has got
	other map[string]int  // answers that were neither admitted nor refused, for a test that fails
}

// patience is how long a test waits for what comes soon on a machine with nothing else to do.
const patience = 30 * time.Second

// answerWithin is how long a request may take whatever becomes of Redis and the bridge: far more than the deadlines, because this
// machine also runs the load, and others use it. That nobody waits for the end of an outage is seen by outages that do not end before
// everybody was answered.
const answerWithin = 8 * time.Second

// crowd sends requests over connections of its own until more says stop, and counts the answers.
func crowd(p *process, connections int, got *tally, more func() bool) *sync.WaitGroup {
	return crowdAt(p.address, connections, got, more)
}

func crowdAt(address string, connections int, got *tally, more func() bool) *sync.WaitGroup {
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections},
	}
	group := new(sync.WaitGroup)
	for range connections {
		answers := got.client()
		group.Go(func() {
			for more() {
				got.ask(client, "http://"+address+"/")
				answers.Add(1)
			}
		})
	}
	return group
}

// client returns a count of the answers that one more client gets.
func (got *tally) client() *atomic.Int64 {
	got.mu.Lock()
	defer got.mu.Unlock()
	got.each = append(got.each, new(atomic.Int64))
	return got.each[len(got.each)-1]
}

// eachIsAnswered waits until each client of the crowds has got two answers more: one to a request that was sent since.
func (got *tally) eachIsAnswered(t testing.TB) {
	t.Helper()
	got.mu.Lock()
	each := slices.Clone(got.each)
	got.mu.Unlock()
	for _, answers := range each {
		before := answers.Load()
		await.Until(t, patience, "everybody is answered while the outage lasts", func() bool { return answers.Load() >= before+2 })
	}
}

// times returns a stop after n requests.
func times(n int64) func() bool {
	var left atomic.Int64
	left.Store(n)
	return func() bool { return left.Add(-1) >= 0 }
}

func (got *tally) ask(client *http.Client, url string) {
	start := time.Now()
	response, err := client.Get(url)
	if err != nil {
		got.broken.Add(1)
		got.note(err.Error())
		return
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	took := int64(time.Since(start))
	for slowest := got.slowest.Load(); took > slowest && !got.slowest.CompareAndSwap(slowest, took); {
		slowest = got.slowest.Load()
	}
	switch {
	case response.StatusCode == http.StatusOK:
		got.admitted.Add(1)
	case response.StatusCode == http.StatusTooManyRequests:
		got.refused.Add(1)
	default:
		if response.StatusCode >= 500 {
			got.serverErrors.Add(1)
		}
		got.note(fmt.Sprintf("%d %s", response.StatusCode, body))
	}
}

// note counts what was neither admitted nor refused.
func (got *tally) note(what string) {
	got.mu.Lock()
	defer got.mu.Unlock()
	if got.other == nil {
		got.other = map[string]int{}
	}
	got.other[what]++
}

// others says what was neither admitted nor refused, and how often.
func (got *tally) others() string {
	got.mu.Lock()
	defer got.mu.Unlock()
	return fmt.Sprint(got.other)
}
