// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestModuleWays tests that the native module charges requests of every kind one time and to the
// right client, and forwards them unchanged. The cases are those of TestEnvoyWays.
func TestModuleWays(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	const trusting = "trusted_proxies: [127.0.0.0/8]"
	ways := []struct {
		name, manager, routes, settings string
		two                             bool
		run                             func(s *site, t *testing.T, b *bridge)
	}{
		{name: "use_remote_address", settings: trusting, run: (*site).knowsAddresses},
		{name: "skip_xff_append", manager: "use_remote_address: true, skip_xff_append: true", settings: trusting + "\nxff_appended: false",
			run: (*site).knowsAddresses},
		{name: "xff_num_trusted_hops", manager: "use_remote_address: true, xff_num_trusted_hops: 1", run: (*site).knowsAddresses},
		{name: "upgrades", manager: upgrading, run: (*site).limitsUpgrades},
		{name: "tunnels", manager: upgrading, routes: tunnelling, run: (*site).limitsTunnels},
		{name: "bodies", run: passesBodiesOver(redis)},
		{name: "bodies, HTTP 2", two: true, run: passesBodiesOver(redis)},
	}
	var sites []*site
	for i, w := range ways {
		policy := strings.NewReplacer("TRUST", w.settings, "name: shop", "name: way-"+strconv.Itoa(i)).Replace(waysPolicy)
		sites = append(sites, &site{filter: moduleFilter(policy + inRedis(redis)), manager: w.manager, routes: w.routes, two: w.two})
	}
	startEnvoyIn(t, []string{modulePath(t)}, "", http.HandlerFunc(serveEcho), sites...)
	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) { w.run(sites[i], t, nil) })
	}
}

// passesBodiesOver returns a test of requests with bodies that are undecided while the test pauses
// Redis.
func passesBodiesOver(redis *redistest.Server) func(s *site, t *testing.T, b *bridge) {
	return func(s *site, t *testing.T, _ *bridge) { s.passesBodiesWhile(t, redis.Pause, redis.Resume) }
}

// TestModuleWhileRedisHangs tests that requests over 64 connections are answered in time while
// Redis hangs. The deadline is the default of 50 ms, and on_error has either value.
func TestModuleWhileRedisHangs(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	settings := func(name, onError string) string {
		return strings.NewReplacer("shop", name, "deny", onError, "3/31d", "1000000/31d").Replace(threeADay) +
			"store: {type: redis, url: \"" + redis.URL() + "\"}\n"
	}
	_, sites := startModule(t, module(t), nil, settings("open", "allow"), settings("closed", "deny"))
	for i, s := range sites {
		eventually.Until(t, patience, "Redis decides", func() bool { return s.get(t, "/").header.Get("RateLimit") != "" })
		var got tally
		done := make(chan struct{})
		group := startLoadOn(s.address, 64, &got, untilClosed(done))
		answered := func() int64 { return got.admitted.Load() + got.serverErrors.Load() }
		eventually.Until(t, patience, "requests are answered", func() bool { return answered() > 500 })
		got.slowest.Store(0)
		redis.Pause()
		before := answered()
		eventually.Until(t, patience, "requests are answered while Redis hangs", func() bool { return answered() > before+1_000 })
		redis.Resume()
		close(done)
		group.Wait()
		slowest := time.Duration(got.slowest.Load())
		t.Logf("site %d: %d answers, %d of them 503, slowest %v", i, answered(), got.serverErrors.Load(), slowest)
		if slowest > answerWithin || got.broken.Load()+got.refused.Load() != 0 || i == 0 && got.serverErrors.Load() != 0 {
			t.Errorf("site %d: slowest %v, %d broken, %d 5xx, %s", i, slowest, got.broken.Load(), got.serverErrors.Load(), got.summarizeOthers())
		}
	}
}

// TestModuleStartsBesideAHungRedis tests that Envoy becomes ready although Redis hangs, that
// on_error decides the first requests, and that limits are enforced when Redis answers.
func TestModuleStartsBesideAHungRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Pause()
	_, sites := startModule(t, module(t), nil, strings.Replace(threeADay, "deny", "allow", 1)+"store: {type: redis, url: \""+redis.URL()+"\"}\n")
	s := sites[0]
	for n := range 10 {
		begin := time.Now()
		if a := s.get(t, "/"); a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
			t.Errorf("request %d: status %d", n+1, a.status)
		}
		if took := time.Since(begin); took > answerWithin {
			t.Errorf("request %d: it took %v", n+1, took)
		}
	}
	redis.Resume()
	eventually.Until(t, patience, "the limit holds", func() bool {
		return s.get(t, "/").status == http.StatusTooManyRequests && redis.Calls("evalsha") > 0
	})
}

// TestModuleMemoryIsFlat tests that requests of ever new clients with invalid credentials do not
// make Envoy's memory grow.
func TestModuleMemoryIsFlat(t *testing.T) {
	t.Parallel()
	clients := unknownClients(t)
	folder := t.TempDir()
	keys, err := os.ReadFile("../examples/keys.toml")
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "keys.toml"), keys, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := newRenamedFile(t, filepath.Join(folder, "policy.yaml"))
	file.edit(unknownClientsPolicy)
	s := &site{direct: true, filter: moduleFilter("policy: " + file.path + "\nmemory_limit: 256MiB\nstore: {type: memory, counters_max: 15000}\n")}
	e := startEnvoyIn(t, []string{modulePath(t)}, "", nil, s)
	const warm = 20_000 // more clients than counters
	s.visit(t, 0, warm)
	before := e.residentKB()
	s.visit(t, warm, warm+clients)
	after := e.residentKB()
	t.Logf("%d unknown clients: Envoy %d MB, then %d MB", clients, before>>10, after>>10)
	if most := min(24<<10, growthByClientMax*clients>>10); after > before+most {
		t.Errorf("Envoy has grown from %d to %d KB by %d unknown clients", before, after, clients)
	}
}
