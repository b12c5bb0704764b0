// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

const throttledDirectoryPolicy = `name: shop
directory: true
identify: [{header: {name: X-User, unverified: true}}]
rules: [{name: slow, limit: 1/8s burst 1, action: throttle, throttle: {max_delay: 20s, max_waiting: 10}}]
`

// TestABlockReachesThoseThatWait tests that a throttled request is denied if its client is blocked
// while the request waits, in Caddy and behind Envoy. On a busy machine, the block may come too
// late. Then the test tries again with another client.
func TestABlockReachesThoseThatWait(t *testing.T) {
	t.Parallel()
	f := startAllFronts(t, throttledDirectoryPolicy)
	for _, front := range []struct {
		name, address string
		waiting       func() bool
	}{
		{"Caddy", f.caddy.address, func() bool { return f.caddy.metric("penstock_waiting ") == 1 }},
		{"Envoy", f.site.address, func() bool { return f.site.envoy.stat("http."+f.site.name+".downstream_rq_active") == 1 }},
	} {
		status := 0
		for try := range 3 {
			if status = f.blockedWhileWaiting(front.address, fmt.Sprintf("%s-%d", front.name, try), front.waiting); status == http.StatusForbidden {
				break
			}
		}
		if status != http.StatusForbidden {
			t.Errorf("%s: a request whose client was blocked while it waited has status %d", front.name, status)
		}
	}
}

// blockedWhileWaiting sends a request that must wait, blocks its client, and returns the status of
// the answer.
func (f *allFronts) blockedWhileWaiting(address, user string, waiting func() bool) (status int) {
	f.t.Helper()
	send := func() int {
		a, err := ask(new(http.Client), "http://"+address+"/", "X-User", user)
		if err != nil {
			f.t.Error(err)
		}
		return a.status
	}
	if first := send(); first != http.StatusOK {
		f.t.Errorf("%s: the first request has status %d", user, first)
	}
	ended := make(chan int, 1)
	go func() { ended <- send() }()
	eventually.Until(f.t, patience, user+" waits", func() bool { return waiting() || len(ended) > 0 })
	f.ask("Redis", "client", "block", "header.x-user:"+user, "--reason", "a test").mustSucceed(f.t)
	return <-ended
}
