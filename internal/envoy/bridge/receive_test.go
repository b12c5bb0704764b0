// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/test/eventually"
)

// halfBody is a body that stops in the middle until it is closed.
type halfBody struct {
	came io.Reader
	rest chan error
}

func (h *halfBody) Read(p []byte) (int, error) {
	if n, err := h.came.Read(p); err == nil {
		return n, nil
	}
	return 0, <-h.rest
}

func (h *halfBody) Close() error { return nil }

// testBridge.sendHalf sends half a call. The returned channel receives the status of the
// answer.
func (h *testBridge) sendHalf(came []byte) (rest chan error, status chan int) {
	rest, status = make(chan error), make(chan int, 1)
	r := httptest.NewRequest(http.MethodPost, "/v1/check", &halfBody{bytes.NewReader(came), rest})
	r.Header.Set("Content-Type", wire.ContentType)
	go func() {
		w := httptest.NewRecorder()
		h.b.Handler().ServeHTTP(w, r)
		status <- w.Code
	}()
	return rest, status
}

// TestHalfACallHoldsNoPlace: a complete call is answered, whatever the number of incomplete ones.
func TestHalfACallHoldsNoPlace(t *testing.T) {
	h := open(t, shop, func(o *Options) { o.CallsMax = 1 })
	whole := h.call(h.question("/api/x", "192.0.2.1"))
	var rests []chan error
	var statuses []chan int
	for range 50 {
		rest, status := h.sendHalf(whole[:len(whole)-1])
		rests, statuses = append(rests, rest), append(statuses, status)
	}
	eventually.Until(t, 10*time.Second, "they come", func() bool { return h.b.receiving.Load() == 50 })
	if w := h.post(whole, wire.ContentType); w.Code != 200 {
		t.Errorf("status %d beside half-sent calls", w.Code)
	}
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if want := "penstock_bridge_calls_receiving 50"; !strings.Contains(w.Body.String(), want) {
		t.Errorf("/metrics does not say %s", want)
	}
	for i, rest := range rests {
		rest <- io.ErrUnexpectedEOF
		if got := <-statuses[i]; got != 400 {
			t.Errorf("half a call: status %d", got)
		}
	}
	if h.b.receiving.Load() != 0 || h.b.under.Load() != 0 {
		t.Errorf("%d come, %d are under way", h.b.receiving.Load(), h.b.under.Load())
	}
}

// TestIncomingCallsAreBounded: the calls and bytes being received are bounded, and calls that have
// ended no longer count.
func TestIncomingCallsAreBounded(t *testing.T) {
	h := open(t, shop, nil)
	whole := h.call(h.question("/api/x", "192.0.2.1"))
	h.b.receiving.Store(receivingMax)
	if w := h.post(whole, wire.ContentType); w.Code != 503 || w.Header().Get("Connection") != "close" {
		t.Error("one call more than may come:", w.Code, w.Header())
	}
	h.b.receiving.Store(0)
	large := make([]byte, bodyFree+1000)
	rest, status := h.sendHalf(large)
	eventually.Until(t, 10*time.Second, "its bytes count", func() bool { return h.b.bodies.Load() == 1000 })
	h.b.bodies.Add(bodiesMax - 2000)
	if w := h.post(large, wire.ContentType); w.Code != 400 {
		t.Error("there is room:", w.Code)
	}
	if w := h.post(make([]byte, bodyFree+1001), wire.ContentType); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Error("there is no room:", w.Code)
	}
	if w := h.post(whole, wire.ContentType); w.Code != 200 {
		t.Error("a small call:", w.Code)
	}
	rest <- io.EOF
	if got := <-status; got != 400 {
		t.Error(got)
	}
	if got := h.b.bodies.Load(); got != bodiesMax-2000 {
		t.Errorf("%d bytes are kept of calls that have ended", got-bodiesMax+2000)
	}
}

// stuckWriter is a response writer that blocks, like one whose client has stopped reading.
type stuckWriter struct {
	sink
	writing, read chan struct{}
}

func (s *stuckWriter) Write(p []byte) (int, error) {
	close(s.writing)
	<-s.read
	return len(p), nil
}

// TestAnUnreadReplyHoldsNoPlace: a client that does not read its reply does not count towards
// CallsMax.
func TestAnUnreadReplyHoldsNoPlace(t *testing.T) {
	h := open(t, shop, func(o *Options) { o.CallsMax = 1 })
	whole := h.call(h.question("/api/x", "192.0.2.1"))
	for _, contentType := range []string{wire.ContentType, "application/json"} {
		body := map[bool][]byte{true: whole, false: []byte(`{}`)}[contentType == wire.ContentType]
		r := httptest.NewRequest(http.MethodPost, "/v1/check", bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		w := &stuckWriter{sink{http.Header{}}, make(chan struct{}), make(chan struct{})}
		done := make(chan struct{})
		go func() {
			h.b.Handler().ServeHTTP(w, r)
			close(done)
		}()
		<-w.writing
		if got := h.post(whole, wire.ContentType).Code; got != 200 {
			t.Errorf("status %d beside a reply of %s that nobody reads", got, contentType)
		}
		close(w.read)
		<-done
	}
}
