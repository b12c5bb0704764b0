// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// tally is what a crowd of requests got.
type tally struct {
	admitted, refused, broken atomic.Int64
	serverErrors              atomic.Int64
	slowest                   atomic.Int64 // nanoseconds
}

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
		group.Go(func() {
			for more() {
				got.ask(client, "http://"+address+"/")
			}
		})
	}
	return group
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
		return
	}
	_, _ = io.Copy(io.Discard, response.Body)
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
	case response.StatusCode >= 500:
		got.serverErrors.Add(1)
	}
}
