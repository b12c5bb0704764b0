// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// TestPanicWhileAFileIsLoadedKeepsTheLastKeys: the panic is logged once with its stack and counted,
// and the next edit is loaded.
func TestPanicWhileAFileIsLoadedKeepsTheLastKeys(t *testing.T) {
	log, now := &lines{}, time.Now()
	w := watchTest(t, "good")
	w.notices = newNotices(log.Logger())
	load := w.load
	w.load = func(data []byte) error {
		if string(data) == "bad" {
			panic("provoked")
		}
		return load(data)
	}
	before := Panics()
	w.put(t, "bad", now.Add(-time.Hour))
	for range 4 {
		w.look(now)
	}
	w.awaitLoaded(t, "good")
	if n := Panics() - before; n != 1 {
		t.Errorf("%d panics are counted, want 1", n)
	}
	if n := log.count("loading a file panicked"); n != 1 || !strings.Contains(log.String(), "panic_test.go") {
		t.Errorf("%d lines of the log tell of the panic, want 1 with a stack:\n%s", n, log)
	}
	w.put(t, "mended", now.Add(-2*time.Hour))
	w.look(now)
	w.look(now)
	w.awaitLoaded(t, "good", "mended")
	if log.count("is in order again") != 1 {
		t.Errorf("the log does not tell that the file is in order:\n%s", log)
	}
}

// TestPanicWhileAKeySetIsLoadedKeepsTheLastKeys: the fetcher continues and fetches again.
func TestPanicWhileAKeySetIsLoadedKeepsTheLastKeys(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	log := &lines{}
	var loads atomic.Int64
	before := Panics()
	f := newFetcher(&JWTOptions{JWKSURL: server.URL, Refresh: time.Hour},
		pace{timeout: time.Minute, retryMin: time.Millisecond, unknown: time.Millisecond},
		newNotices(log.Logger()), func([]byte, string) error {
			if loads.Add(1) == 1 {
				panic("provoked")
			}
			return nil
		})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx) })
	defer running.Wait()
	defer cancel()
	eventually.Until(t, time.Minute, "the set is loaded again", func() bool { return loads.Load() > 1 })
	if n := Panics() - before; n != 1 || log.count("loading a key set panicked") != 1 {
		t.Errorf("%d panics are counted, want 1; the log:\n%s", n, log)
	}
}
