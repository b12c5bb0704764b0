// SPDX-License-Identifier: Apache-2.0

package front

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/directory"
)

// TestABlockReachesThoseThatWait tests that a request in a throttle queue whose client is blocked
// meanwhile is denied at its turn and takes no unit. The unit goes to the request behind it.
func TestABlockReachesThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := openFront(t, "name: shop\ndirectory: {}\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: slow, per: [], "+
			"limit: 1/1s fixed_window, action: throttle, throttle: {max_delay: 5s, max_waiting: 3}}]\n")
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		if v, _, _ := ask(t, f, request("/", "x-user", "ann")); v != Continue {
			t.Fatalf("the first request: verdict %d", v)
		}
		begin := time.Now()
		wait := func(user string) (verdict func() (v Verdict, status int, after time.Duration)) {
			s, b := f.NewStream(), newBell()
			s.Headers = append(s.Headers, request("/", "x-user", user)...)
			if v := s.Decide(client, emptyHost{}, b); v != Wait {
				t.Fatalf("%s does not wait: verdict %d", user, v)
			}
			var after time.Duration
			ended := make(chan struct{})
			go func() { <-b.rung; after = time.Since(begin); close(ended) }()
			synctest.Wait()
			return func() (Verdict, int, time.Duration) {
				<-ended
				defer s.Release()
				return s.Woken(), int(s.Response().Status), after
			}
		}
		bob, ann := wait("bob"), wait("ann")
		editor := directory.Editor{Source: f.store.directory.Source()}
		if _, err := editor.Apply(t.Context(), directory.Edit{Client: "header.x-user:bob", Action: directory.ActionBlock, Actor: "t", Reason: "a test"}); err != nil {
			t.Fatal(err)
		}
		if v, status, after := bob(); v != Respond || status != http.StatusForbidden || after != time.Second {
			t.Errorf("the blocked client: verdict %d, status %d, after %v", v, status, after)
		}
		if v, _, after := ann(); v != Continue || after != time.Second {
			t.Errorf("the client behind it: verdict %d after %v", v, after)
		}
	})
}
