// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// loadedSite is a site under load, with the counts of its answers.
type loadedSite struct {
	*site
	tally
	alone int64 // admitted requests that are not part of the load
	group *sync.WaitGroup
}

// awaitRedis sends requests until one is decided by Redis.
func (s *loadedSite) awaitRedis(t testing.TB, what string) {
	t.Helper()
	eventually.Until(t, patience, what, func() bool {
		a := s.get(t, "/")
		if a.status == http.StatusOK {
			s.alone++
		}
		return a.header.Get("X-RateLimit-Limit") != ""
	})
}

// awaitAdmitted waits until the given number of further requests of the load have been admitted.
func (s *loadedSite) awaitAdmitted(t testing.TB, more int64) {
	t.Helper()
	before := s.admitted.Load()
	eventually.Until(t, patience, "requests are admitted", func() bool { return s.admitted.Load() >= before+more })
}

// loadedSite.used returns the number of used units of a limit of a million. The request that it
// sends for this is not included.
func (s *loadedSite) used(t testing.TB) int64 {
	t.Helper()
	return 1_000_000 - s.get(t, "/").number("X-RateLimit-Remaining") - 1
}

// TestModuleFollowsSentinels tests that the module continues on the replica when sentinels replace
// a master that dies under load. Until then, on_error decides each request in time. Afterwards the
// number of used units equals the number of admitted requests. The charge, or the answer to it, may
// be lost only for requests that were under way when the master died. Units whose use was
// replicated before are not admitted again, even after the old master has returned.
func TestModuleFollowsSentinels(t *testing.T) {
	t.Parallel()
	const connections, clients, enough = 8, 8, 200
	g := newSentinelGroup(t)
	rules := fourEach + "- {name: all, match: {path: /}, per: [], limit: 1000000/31d, expose: true}\nstore: {type: redis, " + storeWords(g.flags[0]) + ", timeout: 5s}\n"
	_, sites := startModule(t, module(t), nil, "name: open\non_error: allow\n"+rules, "name: closed\non_error: deny\n"+rules)
	open, closed := &loadedSite{site: sites[0]}, &loadedSite{site: sites[1]}
	both := []*loadedSite{open, closed}
	eachClient := func(statuses ...int) {
		t.Helper()
		for _, s := range both {
			for client := range clients {
				askInTurn(t, []string{s.address}, client, statuses...)
			}
		}
	}
	for _, s := range both {
		s.awaitRedis(t, "Redis decides")
	}
	eachClient(200, 200)
	g.sentinel.AwaitReplicated()
	done := make(chan struct{})
	for _, s := range both {
		s.group = startLoadOn(s.address, connections, &s.tally, untilClosed(done))
		s.awaitAdmitted(t, enough)
	}
	master := g.sentinel.Master()
	master.Kill()
	open.eachIsAnswered(t)
	closed.eachIsAnswered(t)
	g.sentinel.AwaitFailover(master)
	for _, s := range both {
		s.awaitRedis(t, "the replica decides")
		s.awaitAdmitted(t, enough)
	}
	close(done)
	for _, s := range both {
		s.group.Wait()
		if failed := s.serverErrors.Load() > 0; s.refused.Load()+s.broken.Load() != 0 || failed != (s == closed) {
			t.Errorf("%s: %d denied, %d broken, %s", s.name, s.refused.Load(), s.broken.Load(), s.summarizeOthers())
		}
		if slowest := time.Duration(s.slowest.Load()); slowest > answerWithin {
			t.Errorf("%s: an answer took %v", s.name, slowest)
		}
		admitted, used := s.admitted.Load()+s.alone, s.used(t)
		t.Logf("%s: %d admitted, %d used, %s", s.name, admitted, used, s.summarizeOthers())
		if used < admitted-connections || used > admitted+connections {
			t.Errorf("%s: %d requests are admitted, and %d units are used", s.name, admitted, used)
		}
	}
	eachClient(200)
	master.Restart()
	g.sentinel.AwaitOrder()
	eachClient(200, 429, 429)
}
