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

	"github.com/penstock/penstock/internal/test/eventually"
)

// tally counts the answers that the requests of startLoad receive.
type tally struct {
	admitted, refused, broken atomic.Int64
	serverErrors              atomic.Int64
	slowest                   atomic.Int64 // nanoseconds

	mu   sync.Mutex
	each []*atomic.Int64 // answers per client
	// other counts, by status and body, the answers that neither admitted nor denied a request. The
	// message of a failed test shows these counts.
	other map[string]int
}

// patience is how long a test waits for events that happen quickly on an idle machine.
const patience = 30 * time.Second

// answerWithin is how long any request may wait for its answer, whatever happens to Redis and the
// bridge. It is much longer than the deadlines, because the load and other tests share the machine.
// To show that no client waits until an outage ends, the tests end an outage only after every
// client has been answered.
const answerWithin = 8 * time.Second

// startLoad starts clients, each on its own connection. They send requests until more() returns
// false. The tally got counts the answers.
func startLoad(p *process, connections int, got *tally, more func() bool) *sync.WaitGroup {
	return startLoadOn(p.address, connections, got, more)
}

func startLoadOn(address string, connections int, got *tally, more func() bool) *sync.WaitGroup {
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

// tally.client adds a client, and returns the counter of the answers to this client.
func (got *tally) client() *atomic.Int64 {
	got.mu.Lock()
	defer got.mu.Unlock()
	got.each = append(got.each, new(atomic.Int64))
	return got.each[len(got.each)-1]
}

// tally.eachIsAnswered waits until each client has received two more answers. The second of these
// answers a request that was sent after eachIsAnswered was called.
func (got *tally) eachIsAnswered(t testing.TB) {
	t.Helper()
	got.mu.Lock()
	each := slices.Clone(got.each)
	got.mu.Unlock()
	for _, answers := range each {
		before := answers.Load()
		eventually.Until(t, patience, "everybody is answered while the outage lasts", func() bool { return answers.Load() >= before+2 })
	}
}

// times returns a function that returns true for its first n calls.
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

// tally.note counts an answer that neither admitted nor denied its request.
func (got *tally) note(what string) {
	got.mu.Lock()
	defer got.mu.Unlock()
	if got.other == nil {
		got.other = map[string]int{}
	}
	got.other[what]++
}

// tally.summarizeOthers returns, as text, how often each answer arrived that neither admitted nor
// denied its request.
func (got *tally) summarizeOthers() string {
	got.mu.Lock()
	defer got.mu.Unlock()
	return fmt.Sprint(got.other)
}
