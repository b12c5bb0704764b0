// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// startModuleWith runs an Envoy with one site, and with the given flags in place of the usual
// flags.
func startModuleWith(t testing.TB, s *site, upstream http.Handler, flags ...string) *envoy {
	t.Helper()
	e := &envoy{admin: freeport.Address(t)}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	overwritten(t, file).edit(e.configuration(t, "", startUpstream(t, upstream), []*site{s}))
	e.run(t, file, flags...)
	return e
}

// envoy.run starts the process of an Envoy with the module, and waits until it is ready.
func (e *envoy) run(t testing.TB, file string, flags ...string) {
	t.Helper()
	command := exec.Command(envoyProgram, slices.Concat([]string{"-c", file, "--log-level", "warning"}, flags)...)
	command.Env = append(os.Environ(), modulePath(t))
	e.server = startServer(t, command)
	eventually.Until(t, envoyPatience, "Envoy is ready", func() bool {
		e.mustRun()
		response, err := http.Get("http://" + e.admin + "/ready")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// TestModuleWorkers tests that exactly the limit is admitted with one, two and eight workers,
// whether the units are counted in memory or in Redis. SIGPROF ends an Envoy with the module, as it
// ends an Envoy without the module.
func TestModuleWorkers(t *testing.T) {
	t.Parallel()
	const asked, limit = 2_000, 1_000
	redis := redistest.Start(t)
	for _, workers := range []string{"1", "2", "8"} {
		policy := "name: w" + workers + "\non_error: deny\nrules: [{name: all, limit: 1000/31d}]\n"
		for _, settings := range []string{policy, policy + inRedis(redis)} {
			s := &site{filter: moduleFilter(settings)}
			e := startModuleWith(t, s, nil, "--concurrency", workers, "--use-dynamic-base-id", "--disable-hot-restart")
			var got tally
			startLoadOn(s.address, 64, &got, times(asked)).Wait()
			if got.admitted.Load() != limit || got.refused.Load() != asked-limit {
				t.Errorf("%s workers: %d admitted, %d denied, %s", workers, got.admitted.Load(), got.refused.Load(), got.summarizeOthers())
			}
			ends := syscall.SIGTERM
			if workers == "1" {
				ends = syscall.SIGPROF
			}
			e.endBy(t, ends)
		}
	}
}

// TestModuleSignals tests that signals have their usual effect on an Envoy with the module. Under
// load, Envoy goes on after SIGHUP and SIGUSR1, and ends at SIGTERM.
func TestModuleSignals(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	_, sites := startModule(t, module(t), nil, leasedShop+inRedis(redis))
	s := sites[0]
	var got tally
	done := make(chan struct{})
	group := startLoadOn(s.address, 16, &got, atLeastUntil(done, 1_000))
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGURG, syscall.SIGCHLD} {
		before := got.admitted.Load()
		s.envoy.signal(sig)
		eventually.Until(t, patience, "requests go on", func() bool { return got.admitted.Load() > before+200 })
		s.envoy.mustRun()
	}
	if n := got.refused.Load() + got.serverErrors.Load() + got.broken.Load(); n != 0 {
		t.Errorf("%d of %d requests were not admitted: %s", n, got.admitted.Load(), got.summarizeOthers())
	}
	s.envoy.stop(t)
	close(done)
	group.Wait()
}

// TestModuleHotRestart tests a hot restart under load: a second Envoy takes over the listener and
// the address for operators from the first Envoy. Every request that is answered is admitted, and
// the first Envoy returns the units that it held.
func TestModuleHotRestart(t *testing.T) {
	t.Parallel()
	redis, operators := redistest.Start(t), freeport.Address(t)
	s := &site{filter: moduleFilter(leasedShop + adminAt(operators) + inRedis(redis))}
	first := &envoy{admin: freeport.Address(t)}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	overwritten(t, file).edit(first.configuration(t, "", startUpstream(t, nil), []*site{s}))
	shared := []string{"--concurrency", "2", "--base-id", fmt.Sprint(1_000 + rand.IntN(30_000)), "--drain-time-s", "2", "--parent-shutdown-time-s", "4",
		"--socket-path", "@penstock_" + filepath.Base(filepath.Dir(file)) + portOf(first.admin)}
	first.run(t, file, append(shared, "--restart-epoch", "0")...)
	var got tally
	done := make(chan struct{})
	group := startLoadOn(s.address, 16, &got, atLeastUntil(done, 1_000))
	eventually.Until(t, patience, "the first Envoy serves", func() bool { return got.admitted.Load() > 500 })
	second := &envoy{admin: first.admin}
	second.run(t, file, append(shared, "--restart-epoch", "1")...)
	eventually.Until(t, patience, "the first Envoy ends", func() bool {
		select {
		case <-first.done:
			return true
		default:
			return false
		}
	})
	before := got.admitted.Load()
	eventually.Until(t, patience, "the second Envoy serves", func() bool { return got.admitted.Load() > before+500 })
	eventually.Until(t, patience, "the second Envoy serves operators", func() bool { return strings.Contains(scrapeAt(operators), "penstock_requests_total") })
	close(done)
	group.Wait()
	second.mustRun()
	second.stop(t)
	if n := got.refused.Load() + got.serverErrors.Load(); n != 0 {
		t.Errorf("%d of %d requests were not admitted: %s", n, got.admitted.Load(), got.summarizeOthers())
	}
	_, again := startModule(t, module(t), nil, strings.Replace(leasedShop, "lease: auto", "lease: \"off\"", 1)+inRedis(redis))
	admitted, broken := got.admitted.Load(), got.broken.Load()
	used := 1_000_000 - again[0].get(t, "/").number("X-RateLimit-Remaining") - 1
	t.Logf("%d admitted, %d connections closed, %d used", admitted, broken, used)
	// A request whose connection was closed may have been charged.
	if used < admitted || used > admitted+broken {
		t.Errorf("%d units are used by %d requests, and %d whose connection was closed", used, admitted, broken)
	}
}

// TestModuleOutlivesItsStandardOutput tests that Envoy goes on if the reader of its standard output
// has gone. By default, the module writes its events to the standard output. Now it counts these
// events as dropped.
func TestModuleOutlivesItsStandardOutput(t *testing.T) {
	t.Parallel()
	operators := freeport.Address(t)
	s := &site{filter: moduleFilter("events: {}\n" + threeADay + adminAt(operators))}
	e := &envoy{admin: freeport.Address(t)}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	overwritten(t, file).edit(e.configuration(t, "", startUpstream(t, nil), []*site{s}))
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh", append([]string{"-c", `exec "$@" >&3 3>&-`, "sh"}, envoyCommand(t, file).Args...)...)
	command.Env, command.ExtraFiles = append(os.Environ(), modulePath(t)), []*os.File{write}
	e.server = startServer(t, command)
	_, _ = write.Close(), read.Close()
	e.awaitReady(t)
	for range 5 {
		s.get(t, "/")
	}
	eventually.Until(t, patience, "the events are dropped", func() bool {
		e.mustRun()
		return strings.Contains(scrapeAt(operators), "penstock_events_dropped_total{reason=\"sink\"} 2\n")
	})
	if a := s.get(t, "/"); a.status != http.StatusTooManyRequests {
		t.Errorf("afterwards: status %d", a.status)
	}
}

// TestModuleDrains tests a graceful drain under load. Each request that Envoy accepts is admitted,
// and all unused units are back in Redis when Envoy has ended.
func TestModuleDrains(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := &site{filter: moduleFilter(leasedShop + inRedis(redis))}
	e := startModuleWith(t, s, nil, "--concurrency", "2", "--use-dynamic-base-id", "--disable-hot-restart", "--drain-time-s", "1")
	var got tally
	done := make(chan struct{})
	group := startLoadOn(s.address, 16, &got, untilClosed(done))
	eventually.Until(t, patience, "Envoy serves", func() bool { return got.admitted.Load() > 500 })
	e.post(t, "/drain_listeners?graceful")
	eventually.Until(t, patience, "Envoy accepts no connection any more", func() bool { return got.broken.Load() > 0 })
	close(done)
	group.Wait()
	e.post(t, "/quitquitquit")
	<-e.done
	_, again := startModule(t, module(t), nil, strings.Replace(leasedShop, "lease: auto", "lease: \"off\"", 1)+inRedis(redis))
	used := 1_000_000 - again[0].get(t, "/").number("X-RateLimit-Remaining") - 1
	if used != got.admitted.Load() || got.refused.Load()+got.serverErrors.Load() != 0 {
		t.Errorf("%d units are used by %d requests: %s", used, got.admitted.Load(), got.summarizeOthers())
	}
}

// envoy.post sends a POST to Envoy's admin endpoint.
func (e *envoy) post(t testing.TB, path string) {
	t.Helper()
	response, err := http.Post("http://"+e.admin+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
}

// TestModuleEndsBesideAHungRedis tests that Envoy ends soon after SIGTERM while Redis hangs. At
// that time, requests wait for Redis, and held units cannot be returned.
func TestModuleEndsBesideAHungRedis(t *testing.T) {
	t.Parallel()
	const most = 5 * time.Second // the module waits a second, and the machine is busy
	redis := redistest.Start(t)
	e, sites := startModule(t, module(t), nil, leasedShop+inRedis(redis), strings.Replace(threeADay, "3/31d", "1000/31d", 1)+inRedis(redis))
	var got tally
	startLoadOn(sites[0].address, 16, &got, times(1_000)).Wait()
	redis.Pause()
	var waiting sync.WaitGroup
	for range 20 {
		waiting.Go(func() { _, _ = ask(http.DefaultClient, "http://"+sites[1].address+"/") })
	}
	eventually.Until(t, patience, "requests wait", func() bool { return e.stat("http."+sites[1].name+".downstream_rq_active") == 20 })
	begin := time.Now()
	e.stop(t)
	if took := time.Since(begin); took > most {
		t.Errorf("Envoy ended after %v", took)
	}
	redis.Resume()
	waiting.Wait()
	if status := e.command.ProcessState.ExitCode(); status != 0 {
		t.Errorf("Envoy ended with status %d:\n%s", status, e.tail())
	}
}
