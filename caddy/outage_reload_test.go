// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// outageSite is a site with three counters. The path of a request decides which of them counts it.
// SETTINGS are settings of the store.
const outageSite = `{
	penstock {
		store redis URL {
			SETTINGS
		}
	}
}
:PORT {
	penstock {
		name shop
		rule probe {
			match path /probe
			limit 1000000/30d
		}
		rule full {
			match path /full
			limit 1000/30d ALGORITHM
			on_error WORD
		}
		rule part {
			match path /part
			limit 1000/30d ALGORITHM
			on_error WORD
		}
	}
	respond ok
}`

// TestAReloadRemembersAnOutage: while Redis is away, reloads that change settings of the store
// forget neither what Redis last reported nor what the node has allowed since. When Redis is back,
// the new configuration charges what the old one owes.
func TestAReloadRemembersAnOutage(t *testing.T) {
	for _, c := range []struct{ word, algorithm string }{
		{"allow", "fixed_window"}, {"local", "sliding_log"},
	} {
		t.Run(c.word+" "+c.algorithm, func(t *testing.T) {
			redis := redistest.Start(t)
			site := func(settings string) string {
				return strings.NewReplacer("URL", redis.URL(), "SETTINGS", settings, "ALGORITHM", c.algorithm, "WORD", c.word).Replace(outageSite)
			}
			s := start(t, site("timeout 250ms"))
			waitUntil(t, "Redis decides", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") != "" })
			byRedis, first := s.burst("/full", 200), s.burst("/part", 100)
			redis.Pause()
			waitUntil(t, "Redis is away", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") == "" })
			before := s.burst("/full", 300)
			first += s.burst("/part", 100)
			var after []int
			for _, settings := range []string{"queue_max 100", "remember_denials off\n timeout 260ms"} {
				if err := s.load(site(settings)); err != nil {
					t.Fatal(err)
				}
				after = append(after, s.burst("/full", 1200))
				first += s.burst("/part", 100)
			}
			redis.Resume()
			waitUntil(t, "Redis decides again", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") != "" })
			last := s.burst("/full", 100)
			// On a busy machine, a request that was counted can fail.
			if sum := byRedis + before + after[0] + after[1] + last; sum > 1000 || sum < 990 {
				t.Errorf("%d requests are admitted of 1000: %d by Redis, %d without it, %d after reloads, %d when it is back", sum,
					byRedis, before, after, last)
			}
			if first != 400 {
				t.Errorf("%d of 400 requests are admitted", first)
			}
			s.get("/part").wantField(t, "X-RateLimit-Remaining", "599")
		})
	}
}

// TestReloadsUnderLoadRememberAnOutage: while an old and a new configuration serve requests at the
// same time, they count together.
func TestReloadsUnderLoadRememberAnOutage(t *testing.T) {
	redis := redistest.Start(t)
	site := func(settings string) string {
		return strings.NewReplacer("URL", redis.URL(), "SETTINGS", settings, "ALGORITHM", "fixed_window", "WORD", "allow").Replace(outageSite)
	}
	s := start(t, site("timeout 250ms"))
	waitUntil(t, "Redis decides", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") != "" })
	admitted := s.burst("/full", 100)
	redis.Pause()
	var during atomic.Int64
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() { during.Add(int64(s.burst("/full", 800))) })
	}
	for n, settings := range []string{"timeout 260ms", "queue_max 100", "timeout 270ms"} {
		if err := s.load(site(settings)); err != nil {
			t.Errorf("load %d: %v", n, err)
		}
	}
	load.Wait()
	redis.Resume()
	waitUntil(t, "Redis decides again", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") != "" })
	// A request whose connection a reload closes may have been counted.
	if admitted += int(during.Load()) + s.burst("/full", 100); admitted > 1000 || admitted < 990 {
		t.Errorf("%d requests are admitted of 1000", admitted)
	}
}

// server.burst sends n requests, 16 at a time, and returns the number of those that are
// admitted. A request is sent again if a reload has closed its connection.
func (s *server) burst(path string, n int) int {
	var left, admitted atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if s.admits(path) {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	return int(admitted.Load())
}

// server.admits sends a request, and reports whether it is admitted.
func (s *server) admits(path string) bool {
	for range 100 {
		r, err := client.Get("http://127.0.0.1:" + strconv.Itoa(s.port) + path)
		if err != nil {
			continue
		}
		_, err = io.Copy(io.Discard, r.Body)
		if err := errors.Join(err, r.Body.Close()); err != nil {
			s.t.Error(err)
		}
		return r.StatusCode == http.StatusOK
	}
	s.t.Errorf("no request of %s is answered", path)
	return false
}
