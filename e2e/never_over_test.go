// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/redistest"
)

// These constants describe the load on three nodes that share a limit.
const (
	limit       = 1_000
	nodes       = 3
	connections = 32
	requests    = 2_000 // to each node
)

const redisCaddyfile = `{
	admin ADMIN
	penstock {
		name shop
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		on_error deny
	}
}
:SITE {
	penstock 1000/31d
	respond "ok"
}
`

func TestNeverOverAcrossNodes(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	var got tally
	loadNodes(t, redis.URL(), &got, nil)
	if got.admitted.Load() != limit || got.refused.Load() != nodes*requests-limit || got.broken.Load() != 0 {
		t.Errorf("admitted %d, refused %d, broken %d: want exactly %d admitted of %d", got.admitted.Load(), got.refused.Load(),
			got.broken.Load(), limit, nodes*requests)
	}
}

func TestNeverOverWhileReloading(t *testing.T) {
	t.Parallel()
	const reloads = 10
	redis := redistest.Start(t)
	var got tally
	loadNodes(t, redis.URL(), &got, func(p *process) {
		for range reloads {
			if err := p.reload(); err != nil {
				t.Error(err)
			}
		}
	})
	// A request whose connection was closed by a reload may have been charged although it got no
	// answer.
	if got.admitted.Load() > limit || got.admitted.Load()+got.broken.Load() < limit {
		t.Errorf("admitted %d with %d broken, want exactly %d", got.admitted.Load(), got.broken.Load(), limit)
	}
	t.Logf("%d broken connections, %d admitted, %d refused", got.broken.Load(), got.admitted.Load(), got.refused.Load())
}

// loadNodes sends requests to three nodes at once. It calls the function meanwhile, if there is
// one, with the first node, and sends that node further requests until the function returns.
func loadNodes(t *testing.T, url string, got *tally, meanwhile func(p *process)) {
	var all []*process
	for range nodes {
		all = append(all, startCaddy(t, redisCaddyfile, "PENSTOCK_REDIS="+url))
	}
	done := make(chan struct{})
	var groups []*sync.WaitGroup
	for i, p := range all {
		more := times(requests)
		if i == 0 && meanwhile != nil {
			more = atLeastUntil(done, requests)
		}
		groups = append(groups, startLoad(p, connections, got, more))
	}
	if meanwhile != nil {
		meanwhile(all[0])
	}
	close(done)
	for _, group := range groups {
		group.Wait()
	}
}

// steadyPause is the pause of a client before each request beyond the required number. It leaves
// most of the processors' time to the other parts of the test.
const steadyPause = 40 * time.Millisecond

// atLeastUntil returns a function that returns true for the first n calls. Each later call sleeps
// for steadyPause, and returns true until the channel named done is closed.
func atLeastUntil(done <-chan struct{}, n int64) func() bool {
	enough := times(n)
	return func() bool {
		more := enough()
		select {
		case <-done:
			return more
		default:
		}
		if !more {
			select {
			case <-done:
				return false
			case <-time.After(steadyPause):
			}
		}
		return true
	}
}

func TestNeverOverInMemoryWhileReloading(t *testing.T) {
	t.Parallel()
	p := startCaddy(t, `{
	admin ADMIN
}
:SITE {
	penstock 1000/31d
	respond "ok"
}
`)
	var got tally
	done := make(chan struct{})
	group := startLoad(p, connections, &got, atLeastUntil(done, requests))
	for range 10 {
		if err := p.reload(); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	group.Wait()
	if got.admitted.Load() > limit || got.admitted.Load()+got.broken.Load() < limit {
		t.Errorf("admitted %d with %d broken, want exactly %d", got.admitted.Load(), got.broken.Load(), limit)
	}
	t.Logf("%d admitted, %d refused, %d broken, slowest %v", got.admitted.Load(), got.refused.Load(), got.broken.Load(),
		time.Duration(got.slowest.Load()))
}
