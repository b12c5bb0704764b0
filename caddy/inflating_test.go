// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/usage"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// gzipOf returns the text compressed by gzip at the given level.
func gzipOf(t *testing.T, text string, level int) string {
	t.Helper()
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compressed.String()
}

// inflatingTest is a handler whose upstream responds with a cost of 3 in a compressed body. The
// handler's queue of bodies starts when the channel start is closed. No other test uses the queue.
type inflatingTest struct {
	*testing.T
	h     *Handler
	start chan bool
}

// runInflating runs a scenario in a synctest bubble.
func runInflating(t *testing.T, story func(*inflatingTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newProvisioned(t, `{"name":"settle","rules":[{"name":"r","per":[],"limit":"1000/30d fixed_window",`+
			`"cost_after":{"json":"usage","estimate":1,"max":100}}]}`)
		h.app.store.inflating = new(inflate.Queue)
		i := &inflatingTest{t, h, make(chan bool)}
		for range runtime.GOMAXPROCS(0) {
			h.app.store.inflating.Add(0, func() { <-i.start })
		}
		story(i)
	})
}

// inflatingTest.respond passes a request from the address to the handler.
func (i *inflatingTest) respond(address string) {
	i.Helper()
	text := gzipOf(i.T, `{"usage":3}`, gzip.DefaultCompression)
	upstream := func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Encoding", "gzip")
		return body("application/json", text)(w, r)
	}
	r := requestFor(http.MethodGet, "/")
	r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)[caddyhttp.ClientIPVarKey] = address
	if err := i.h.ServeHTTP(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(upstream)); err != nil {
		i.Error(err)
	}
}

// TestResponsesDoNotWaitForDecompression tests that a response with a cost in a compressed body
// ends while other bodies still wait to be decompressed, and that the cost is charged later. If
// SourceMax bodies of one address wait, the next body of that address is not read, but a body of
// another address is read.
func TestResponsesDoNotWaitForDecompression(t *testing.T) {
	runInflating(t, func(i *inflatingTest) {
		for range inflate.SourceMax {
			i.respond("192.0.2.7")
		}
		want := int64(inflate.SourceMax)
		if used := usedUnits(i.T, i.h, "/"); used != want {
			i.Errorf("%d units are used before any body is decompressed, want %d", used, want)
		}
		i.respond("192.0.2.7") // its body is not read
		i.respond("192.0.2.8")
		if used := usedUnits(i.T, i.h, "/"); used != want+100+1 {
			i.Errorf("%d units are used after a body without a place, want %d", used, want+100+1)
		}
		close(i.start)
		if used := usedUnits(i.T, i.h, "/"); used != 3*want+100+3 {
			i.Errorf("%d units are used in the end, want %d", used, 3*want+100+3)
		}
	})
}

// TestAProcessExitsAfterItsBodies tests that a process that exits decompresses the waiting bodies
// and settles their requests while usage is still counted, but does not wait for them forever.
func TestAProcessExitsAfterItsBodies(t *testing.T) {
	for _, inTime := range []bool{true, false} {
		runInflating(t, func(i *inflatingTest) {
			store := i.h.app.store
			store.exiting = func() bool { return true }
			var settled, dropped atomic.Int64
			store.settler = settle.New(store.Store, func(end settle.End) {
				if end == settle.Settled {
					settled.Add(1)
				} else {
					dropped.Add(1)
				}
			})
			counted := false
			i.h.app.unmeter = func() { counted = store.inflating.Wait(0) }
			for range 5 {
				i.respond("192.0.2.7")
			}
			before, ended := time.Now(), make(chan error, 1)
			go func() { ended <- i.h.app.Cleanup() }()
			synctest.Wait()
			if inTime {
				close(i.start)
			}
			if err := <-ended; err != nil {
				i.Fatal(err)
			}
			took := time.Since(before)
			if inTime && (settled.Load() != 5 || !counted || took != 0) {
				i.Errorf("%d of 5 requests are settled at exit after %s, usage was counted: %t", settled.Load(), took, counted)
			}
			if !inTime {
				close(i.start)
				if synctest.Wait(); took != settle.Deadline || dropped.Load() != 5 {
					i.Errorf("the exit took %s, and %d of 5 settlements were dropped", took, dropped.Load())
				}
			}
		})
	}
}

// TestBodiesDoNotWaitForAStoreThatCloses removes a store, as a reload does. The store closes when
// the last compressed body of its requests has been read. Closing may take a while. Other stores
// use the same queue of bodies, and the queue does not wait until this store is closed.
func TestBodiesDoNotWaitForAStoreThatCloses(t *testing.T) {
	runInflating(t, func(i *inflatingTest) {
		store := i.h.app.store
		closing, end := store.close, make(chan bool)
		store.close = func() error {
			<-end
			return closing()
		}
		i.respond("192.0.2.7")
		if err := i.h.app.Cleanup(); err != nil {
			i.Fatal(err)
		}
		close(i.start)
		if !store.inflating.Wait(time.Second) {
			i.Error("the queue waits until the store is closed")
		}
		close(end)
	})
}

// TestAPanicFreesTheBody tests that a panic while a compressed body is read is counted. The memory
// of the body is then free for other bodies of the same address.
func TestAPanicFreesTheBody(t *testing.T) {
	text := gzipOf(t, `{"usage":3,"text":"`+strings.Repeat("a", 1_000_000)+`"}`, gzip.NoCompression)
	tapped := func() *usage.Tap {
		tap := usage.New([]string{"usage"}, "application/json", "gzip", inflate.Bodies{})
		tap.CountFor(7)
		_, _ = tap.Write([]byte(text)) // a tap accepts all bytes
		return tap
	}
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(common.Settlements.WithLabelValues("panic"))
	counted := func() float64 {
		told, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return told[0].GetMetric()[0].GetCounter().GetValue()
	}
	const panics = 20 // more bodies than one address may have
	before, reported := counted(), 0
	store := &pooledStore{settler: newSettler(nil)} // without an enforcer, settlements panic
	store.settler.Panic = func(any) { reported++ }
	for range panics {
		store.hold()
		(&settlement{store: store, tap: tapped()}).correctLater()
	}
	if n := counted() - before; n != panics || reported != panics {
		t.Errorf("%v panics are counted and %d reported, want %d", n, reported, panics)
	}
	tap := tapped()
	defer tap.Close()
	if value, ok := tap.JSON("usage"); !ok || value != "3" {
		t.Errorf("a later body of the address costs %q, %t", value, ok)
	}
}
