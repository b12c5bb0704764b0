// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// sticking is a filter behind the module. A request with the header X-Stuck blocks its worker until
// the test opens the named pipe PIPE for writing.
const sticking = `{name: sticking, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua,
        default_source_code: {inline_string: "function envoy_on_request(h) if h:headers():get('x-stuck') then io.open('PIPE'):close() end end"}}}`

// TestModuleWithAStuckWorker tests an Envoy in which one of two workers is stuck after the module
// has admitted a request. The other worker still decides requests. The requests of the stuck worker
// are answered when it runs again. Each request is charged once.
func TestModuleWithAStuckWorker(t *testing.T) {
	t.Parallel()
	const clients, further = 32, 10
	redis, pipe := redistest.Start(t), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &site{filter: moduleFilter(strings.Replace(threeADay, "3/31d", "100000/31d", 1)+inRedis(redis)) + ",\n      " + strings.Replace(sticking, "PIPE", pipe, 1)}
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, s)
	var got tally
	var each []*atomic.Int64
	var group sync.WaitGroup
	done := make(chan struct{})
	more := atLeastUntil(done, clients)
	for range clients {
		answers, own := got.client(), &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
		each = append(each, answers)
		group.Go(func() {
			for more() {
				got.ask(own, "http://"+s.address+"/")
				answers.Add(1)
			}
		})
	}
	serve := func(what string, n int64) {
		t.Helper()
		before := loadAll(each)
		eventually.Until(t, patience, what, func() bool { least, _ := rangeOfDifferences(before, loadAll(each)); return least >= n })
	}
	serve("both workers serve", 1)
	stuck := make(chan answer, 1)
	go func() {
		a, err := ask(new(http.Client), "http://"+s.address+"/", "X-Stuck", "yes")
		if err != nil {
			a.body = err.Error()
		}
		stuck <- a
	}()
	eventually.Until(t, patience, "one worker serves, and the other one does not", func() bool {
		before := loadAll(each)
		eventually.Until(t, patience, "a worker serves", func() bool {
			_, most := rangeOfDifferences(before, loadAll(each))
			return most >= further
		})
		least, _ := rangeOfDifferences(before, loadAll(each))
		return least == 0
	})
	select {
	case a := <-stuck:
		t.Fatalf("the worker is not stuck: %d %s", a.status, a.body)
	default:
	}
	release(t, pipe)
	if a := <-stuck; a.status != http.StatusOK {
		t.Errorf("the request that was stuck: %d %s", a.status, a.body)
	}
	serve("both workers serve again", 2)
	close(done)
	group.Wait()
	used := 100_000 - s.get(t, "/").number("X-RateLimit-Remaining") - 1
	if want := got.admitted.Load() + 1; used != want || got.refused.Load()+got.broken.Load()+got.serverErrors.Load() != 0 {
		t.Errorf("%d units are used, want %d: %d denied, %d broken, %s", used, want, got.refused.Load(), got.broken.Load(), got.summarizeOthers())
	}
}

// loadAll returns the current values of the counters.
func loadAll(counters []*atomic.Int64) (now []int64) {
	for _, count := range counters {
		now = append(now, count.Load())
	}
	return now
}

// rangeOfDifferences returns the least and the greatest difference between the values before and
// after.
func rangeOfDifferences(before, after []int64) (least, most int64) {
	least = after[0] - before[0]
	for i := range after {
		least, most = min(least, after[i]-before[i]), max(most, after[i]-before[i])
	}
	return least, most
}

// release opens a pipe for writing, so that the stuck worker, which reads the pipe, continues.
func release(t testing.TB, pipe string) {
	t.Helper()
	eventually.Until(t, patience, "the worker waits for the pipe", func() bool {
		file, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			_ = file.Close()
		}
		return err == nil
	})
}
