// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// What three nodes hammer one limit with.
const (
	limit       = 1_000
	nodes       = 3
	connections = 32
	requests    = 5_000 // of each node
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
	redis := redistest.Start(t)
	var got tally
	hammer(t, redis.URL(), &got, nil)
	if got.admitted.Load() != limit || got.refused.Load() != nodes*requests-limit || got.broken.Load() != 0 {
		t.Errorf("admitted %d, refused %d, broken %d: want exactly %d admitted of %d", got.admitted.Load(), got.refused.Load(),
			got.broken.Load(), limit, nodes*requests)
	}
}

func TestNeverOverWhileReloading(t *testing.T) {
	const reloads = 10
	redis := redistest.Start(t)
	var got tally
	hammer(t, redis.URL(), &got, func(p *process) {
		for range reloads {
			if err := p.reload(); err != nil {
				t.Error(err)
			}
		}
	})
	// A request whose connection a reload closed may have been charged without an answer.
	if got.admitted.Load() > limit || got.admitted.Load()+got.broken.Load() < limit {
		t.Errorf("admitted %d with %d broken, want exactly %d", got.admitted.Load(), got.broken.Load(), limit)
	}
	t.Logf("%d broken connections, %d admitted, %d refused", got.broken.Load(), got.admitted.Load(), got.refused.Load())
}

// hammer sends the requests to three nodes at once. Meanwhile something is done to the first, and as long as that takes
// it gets further requests.
func hammer(t *testing.T, url string, got *tally, meanwhile func(p *process)) {
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
		groups = append(groups, crowd(p, connections, got, more))
	}
	if meanwhile != nil {
		meanwhile(all[0])
	}
	close(done)
	for _, group := range groups {
		group.Wait()
	}
}

// atLeastUntil returns a stop after n requests, but not before done.
func atLeastUntil(done <-chan struct{}, n int64) func() bool {
	enough := times(n)
	return func() bool {
		select {
		case <-done:
			return enough()
		default:
			enough()
			return true
		}
	}
}

func TestNeverOverInMemoryWhileReloading(t *testing.T) {
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
	group := crowd(p, connections, &got, atLeastUntil(done, requests))
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
