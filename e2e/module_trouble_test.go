// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestModuleWithoutRedis tests that on_error decides each request in time while Redis hangs, and
// that Redis decides again afterwards.
func TestModuleWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	settings := func(name, onError string) string {
		return strings.NewReplacer("shop", name, "deny", onError, "3/31d", "100000/31d").Replace(threeADay) +
			"store: {type: redis, url: \"" + redis.URL() + "\", timeout: 200ms}\n"
	}
	_, sites := startModule(t, module(t), nil, settings("open", "allow"), settings("closed", "deny"))
	counted := func(s *site) func() bool {
		return func() bool { a := s.get(t, "/"); return a.status == http.StatusOK && a.header.Get("RateLimit") != "" }
	}
	for _, s := range sites {
		eventually.Until(t, patience, "Redis decides", counted(s))
	}
	redis.Pause()
	for i, s := range sites {
		want := []int{http.StatusOK, http.StatusServiceUnavailable}[i]
		for n := range 20 {
			start := time.Now()
			if a := s.get(t, "/"); a.status != want {
				t.Errorf("site %d, request %d: status %d, want %d", i, n+1, a.status, want)
			}
			if took := time.Since(start); took > answerWithin {
				t.Errorf("site %d, request %d: it took %v", i, n+1, took)
			}
		}
	}
	redis.Resume()
	for _, s := range sites {
		eventually.Until(t, patience, "Redis decides again", counted(s))
	}
}

// TestModulePolicyEdited tests that an edit of the policy file takes effect without a restart, and
// that a wrong edit changes nothing.
func TestModulePolicyEdited(t *testing.T) {
	t.Parallel()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(threeADay)
	e, sites := startModule(t, module(t), nil, "policy: "+file.path)
	shown := func() string { return sites[0].get(t, "/").header.Get("X-RateLimit-Limit") }
	if got := shown(); got != "3" {
		t.Fatalf("the limit is %q", got)
	}
	file.edit(strings.Replace(threeADay, "3/31d", "7/31d", 1))
	eventually.Until(t, patience, "the edit is in force", func() bool { return shown() == "7" })
	file.edit("rules: [")
	eventually.Until(t, patience, "the log names the error", func() bool { return strings.Contains(e.log.String(), "the edited policy file is rejected") })
	if got := shown(); got != "7" {
		t.Errorf("after a wrong edit the limit is %q", got)
	}
}

// TestModuleClientsLeave tests that requests of other clients are decided after clients have
// disconnected while their requests waited for a hung Redis.
func TestModuleClientsLeave(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	e, sites := startModule(t, module(t), nil, strings.Replace(threeADay, "3/31d", "100000/31d", 1)+inRedis(redis))
	s := sites[0]
	eventually.Until(t, patience, "Redis decides", func() bool { return s.get(t, "/").status == http.StatusOK })
	for range 3 {
		redis.Pause()
		impatient := &http.Client{Timeout: 100 * time.Millisecond, Transport: &http.Transport{MaxConnsPerHost: 50}}
		left := make(chan error, 50)
		for range cap(left) {
			go func() {
				_, err := ask(impatient, "http://"+s.address+"/")
				left <- err
			}()
		}
		for range cap(left) {
			if err := <-left; err == nil {
				t.Error("a request was answered while Redis hung")
			}
		}
		redis.Resume()
		eventually.Until(t, patience, "requests are decided", func() bool { return s.get(t, "/").status == http.StatusOK })
	}
	e.mustRun()
}

// TestModuleEnds tests that Envoy ends at SIGTERM, and that the module then returns the units that
// it holds to Redis.
func TestModuleEnds(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	settings := "name: shop\nlease: auto\non_error: deny\nrules: [{name: all, limit: 100000/31d}]\n" + inRedis(redis)
	e, sites := startModule(t, module(t), nil, settings)
	var got tally
	const asked = 3_000
	startLoadOn(sites[0].address, 16, &got, times(asked)).Wait()
	if err := e.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "Envoy ends", func() bool {
		select {
		case <-e.done:
			return true
		default:
			return false
		}
	})
	_, again := startModule(t, module(t), nil, strings.Replace(settings, "lease: auto", "lease: \"off\"", 1))
	a := again[0].get(t, "/")
	if got, want := a.header.Get("X-RateLimit-Remaining"), "96999"; got != want {
		t.Errorf("after %d requests and one, %q remain, want %q: status %d, %v", asked, got, want, a.status, a.header)
	}
}

// TestModulePanics tests that after a panic in a hook or in a goroutine, on_error decides the
// affected request, and Envoy and the limits keep working. A fault is a panic that Go's runtime
// raises after a signal. Envoy has a handler for this signal, too. The module is built with a tag
// that lets requests provoke panics.
func TestModulePanics(t *testing.T) {
	t.Parallel()
	path, err := compileModule(filepath.Join("provoked", "libpenstock.so"), "-tags", "provoke")
	if err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	settings := func(name, onError string) string {
		return strings.NewReplacer("shop", name, "deny", onError, "3/31d", "100000/31d").Replace(threeADay)
	}
	e, sites := startModule(t, path, nil, settings("open", "allow")+inRedis(redis), settings("closed", "deny")+inRedis(redis),
		settings("open", "allow"), settings("closed", "deny"))
	for i, s := range sites {
		want := []int{http.StatusOK, http.StatusServiceUnavailable}[i%2]
		eventually.Until(t, patience, "the store decides", func() bool { return s.get(t, "/").status == http.StatusOK })
		places := []string{"hook", "goroutine", "woken", "hook fault", "goroutine fault", "woken fault"}
		if inMemory := i >= 2; inMemory {
			places = []string{"hook", "adapter", "hook fault", "adapter fault"}
		}
		for _, where := range places {
			if a := s.get(t, "/", "X-Provoke", where); a.status != want || a.header.Get("RateLimit") != "" {
				t.Errorf("%s, site %d: status %d, %v, want %d without fields", where, i, a.status, a.header, want)
			}
			for range 4 {
				if a := s.get(t, "/"); a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
					t.Errorf("%s, site %d: afterwards status %d, %v", where, i, a.status, a.header)
				}
			}
		}
	}
	e.mustRun()
	if log := e.log.String(); !strings.Contains(log, "a panic, and on_error decides") || !strings.Contains(log, "provoked in ") &&
		!strings.Contains(log, "nil pointer dereference") {
		t.Errorf("the log does not name the panic:\n%s", log)
	}
}

// TestModuleClientsLeaveBeforeTheResponse tests that a client pays the maximum cost for a request
// that it abandons before the response begins. The reason is that the upstream may already have
// done the work.
func TestModuleClientsLeaveBeforeTheResponse(t *testing.T) {
	t.Parallel()
	served := make(chan struct{}, 64)
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			served <- struct{}{}
			<-r.Context().Done()
		}
		w.Header().Set("X-Cost", "50")
	})
	_, sites := startModule(t, module(t), slow, "name: shop\non_error: deny\n"+
		"rules: [{name: all, limit: 100/31d, cost_after: {header: X-Cost, estimate: 1, default: 1, max: 50}}]\n")
	s := sites[0]
	impatient := &http.Client{Timeout: 200 * time.Millisecond}
	for range 20 {
		if _, err := ask(impatient, "http://"+s.address+"/slow"); err == nil {
			break // denied at once
		}
	}
	// The charge of a request may be corrected after the next one has been admitted.
	if n := len(served); n < 2 || n > 3 {
		t.Errorf("%d requests of at most 50 units each were served under a limit of 100", n)
	}
}
