// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
)

// usedUnits returns how much of the first limit of a path is used, without charging.
func usedUnits(t *testing.T, h *Handler, path string) int64 {
	t.Helper()
	synctest.Wait()
	s := new(scratchSpace)
	r := requestFor(http.MethodGet, path)
	s.attrs.reset(r, varsOf(r))
	s.plan.Add(h.policies[0].Current().Ruleset, &s.attrs)
	looks := slices.Clone(s.plan.Checks())
	for i := range looks {
		looks[i].Op = counter.OpLook
	}
	if err := h.app.store.Take(context.Background(), looks, s.plan.Results()); err != nil {
		t.Fatal(err)
	}
	return s.plan.Checks()[0].Limit.Count() - s.plan.Results()[0].Remaining
}

func requestFor(method, path string) *http.Request {
	r := httptest.NewRequest(method, "http://shop.example"+path, nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
	r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)[caddyhttp.ClientIPVarKey] = "192.0.2.7"
	return r
}

// answeringUpstream is an upstream handler.
type answeringUpstream = func(w http.ResponseWriter, r *http.Request) error

func respondWith(code int) answeringUpstream {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(code)
		return nil
	}
}

func body(contentType, text string) answeringUpstream {
	return func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", contentType)
		_, err := io.WriteString(w, text)
		return err
	}
}

// settledCost passes one request and returns its final cost and its answer.
func settledCost(t *testing.T, rule, method string, upstream answeringUpstream) (cost int64, w *httptest.ResponseRecorder) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newProvisioned(t, `{"name":"settle","rules":[{"name":"r","limit":"1000/30d fixed_window",`+rule+`}]}`)
		w = httptest.NewRecorder()
		func() {
			defer func() { _ = recover() }() // as the server does after the response
			_ = h.ServeHTTP(w, requestFor(method, "/"), caddyhttp.HandlerFunc(upstream))
		}()
		cost = usedUnits(t, h, "/")
	})
	return cost, w
}

const (
	failedLogins = `"count_if":{"status":[401,403]}`
	noErrors     = `"refund_on":{"status":"5xx"}`
	costHeader   = `"cost_after":{"header":"X-Cost","estimate":10,"default":20,"max":100}`
	costJSON     = `"cost_after":{"json":"usage.total_tokens","estimate":10,"default":20,"max":100}`
)

func headers(fields ...string) answeringUpstream {
	return func(w http.ResponseWriter, _ *http.Request) error {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Set(fields[i], fields[i+1])
		}
		w.WriteHeader(http.StatusOK)
		w.Header().Del("X-Cost") // as a header directive around the handler may do
		return nil
	}
}

// failingUpstream returns an upstream that fails with an error of the given status.
func failingUpstream(code int) answeringUpstream {
	return func(http.ResponseWriter, *http.Request) error { return caddyhttp.Error(code, errors.New("upstream")) }
}

// TestOnlyTheUpstreamRefunds: if Caddy answers in place of an upstream that the request reached,
// the request counts. If the upstream could not be reached, the status of the error decides.
func TestOnlyTheUpstreamRefunds(t *testing.T) {
	unreachable := func(http.ResponseWriter, *http.Request) error {
		return caddyhttp.Error(http.StatusBadGateway, reverseproxy.NewDialError(errors.New("connection denied")))
	}
	// Over HTTP/2, an attempt may fail before the transport reports that it wrote the header.
	connected := func(w http.ResponseWriter, r *http.Request) error {
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
		return unreachable(w, r)
	}
	for _, c := range []struct {
		name, rule string
		upstream   answeringUpstream
		cost       int64
	}{
		{"an upstream that cannot be reached", noErrors, unreachable, 0},
		{"a connection before", noErrors, connected, 1},
		{"no upstream is healthy", noErrors, failingUpstream(503), 0},
		{"a response of the upstream", noErrors, respondWith(502), 0},
		{"a response that cannot be accepted", noErrors, failingUpstream(502), 1},
		{"a response that is late", noErrors, failingUpstream(504), 1},
		{"a failed login whose response cannot be accepted", failedLogins, failingUpstream(502), 1},
		{"a cost in a response that cannot be accepted", costHeader, failingUpstream(502), 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := settledCost(t, c.rule, http.MethodGet, c.upstream); got != c.cost {
				t.Errorf("it cost %d, want %d", got, c.cost)
			}
		})
	}
}

// TestFinalCostOfAGRPCCall: grpc-status decides, and a call counts if it is not known whether the
// client has caused the status.
func TestFinalCostOfAGRPCCall(t *testing.T) {
	grpc := func(code string, fields ...string) answeringUpstream {
		return headers(append(fields, "Content-Type", "application/grpc+proto", "Grpc-Status", code)...)
	}
	grpcTrailers := func(name, code string) answeringUpstream {
		return func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Content-Length", "5") // a trailer can follow nevertheless over HTTP/2
			_, err := io.WriteString(w, "\x00\x00\x00\x00\x00")
			w.Header().Set(name, code)
			return err
		}
	}
	for _, c := range []struct {
		name, rule string
		upstream   answeringUpstream
		cost       int64
	}{
		{"a failed login by gRPC", failedLogins, grpc("16"), 1},
		{"a good one by gRPC", failedLogins, grpc("0"), 0},
		{"a failed login by gRPC, in a trailer", failedLogins, grpcTrailers("Grpc-Status", "7"), 1},
		{"a failed login by gRPC, in a trailer of reverse_proxy", failedLogins, grpcTrailers(http.TrailerPrefix+"Grpc-Status", "16"), 1},
		{"a good one by gRPC, in a trailer", failedLogins, grpcTrailers(http.TrailerPrefix+"Grpc-Status", "0"), 0},
		{"a login by gRPC that tells nothing", failedLogins, grpcTrailers("X-Other", "0"), 1},
		{"a login by gRPC whose status is not a code", failedLogins, grpc("0, 0"), 1},
		{"a login by gRPC-Web, whose status is in the body", failedLogins, body("application/grpc-web+proto", "\x80"), 1},
		{"an upstream that is not available, by gRPC", noErrors, grpc("14"), 0},
		{"a call by gRPC that was canceled", noErrors, grpc("1"), 1},
		{"a call by gRPC whose time was over", noErrors, grpc("4"), 1},
		{"a message of gRPC that cannot be read", noErrors, grpc("13"), 1},
		{"a cost by gRPC", costHeader, grpc("13", "X-Cost", "7"), 7},
		{"a failed login by gRPC, in another spelling", failedLogins,
			headers("Content-Type", "Application/GRPC", "Grpc-Status", "16"), 1},
		{"grpc-status in a page", failedLogins, headers("Content-Type", "text/html", "Grpc-Status", "16"), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := settledCost(t, c.rule, http.MethodPost, c.upstream); got != c.cost {
				t.Errorf("it cost %d, want %d", got, c.cost)
			}
		})
	}
}

func TestFinalCostOfARequest(t *testing.T) {
	nothingWritten := func(http.ResponseWriter, *http.Request) error { return nil }
	panics := func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) }
	panicsLater := func(w http.ResponseWriter, r *http.Request) error {
		w.WriteHeader(http.StatusUnauthorized)
		panic(http.ErrAbortHandler)
	}
	early := func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusUnauthorized)
		return nil
	}
	trailers := func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Trailer", "X-Cost")
		_, err := io.WriteString(w, "text")
		w.Header().Set("X-Cost", "7")
		return err
	}
	trailersUnannounced := func(w http.ResponseWriter, _ *http.Request) error {
		_, err := io.WriteString(w, "text")
		// this is how reverse_proxy forwards the trailers of gRPC
		w.Header().Set(http.TrailerPrefix+"X-Cost", "7")
		return err
	}
	for _, c := range []struct {
		name, rule string
		upstream   answeringUpstream
		cost       int64
	}{
		{"a failed login counts", failedLogins, respondWith(401), 1},
		{"a good one does not", failedLogins, respondWith(200), 0},
		{"nothing written is 200", failedLogins, nothingWritten, 0},
		{"a status after early hints", failedLogins, early, 1},
		{"a panic tells nothing: the charge stands", failedLogins, panics, 1},
		{"a panic behind the header", failedLogins, panicsLater, 1},
		{"an error of an upstream", noErrors, respondWith(500), 0},
		{"an error without a status", noErrors, func(http.ResponseWriter, *http.Request) error { return io.EOF }, 0},
		{"another error", noErrors, failingUpstream(404), 1},
		{"no error", noErrors, respondWith(200), 1},
		{"an upgrade", noErrors, respondWith(101), 1},
		{"not modified", noErrors, respondWith(304), 1},
		{"less than estimated", costHeader, headers("X-Cost", "7"), 7},
		{"more than estimated", costHeader, headers("X-Cost", "77"), 77},
		{"nothing", costHeader, headers("X-Cost", "0"), 0},
		{"no cost said", costHeader, headers(), 20},
		{"an absurd one", costHeader, headers("X-Cost", "101"), 20},
		{"not a number", costHeader, headers("X-Cost", "many"), 20},
		{"in a trailer", costHeader, trailers, 7},
		{"in a trailer that was not announced", costHeader, trailersUnannounced, 7},
		{"in a document", costJSON, body("application/json", `{"usage":{"total_tokens":33}}`), 33},
		{"in an event", costJSON, body("text/event-stream", "data: {\"usage\":{\"total_tokens\":33}}\n\ndata: [DONE]\n\n"), 33},
		{"in a page", costJSON, body("text/html", `{"usage":{"total_tokens":33}}`), 20},
		{"in a document that is cut short", costJSON, body("application/json", `{"usage":{"total_tokens":33}`), 20},
		{"an upgrade where a body is read", costJSON, respondWith(101), 100},
		{"no body where one is read", costJSON, respondWith(204), 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := settledCost(t, c.rule, http.MethodGet, c.upstream); got != c.cost {
				t.Errorf("it cost %d, want %d", got, c.cost)
			}
		})
	}
}

func TestTheCostIsReported(t *testing.T) {
	for said, want := range map[string]string{"7": "7", "many": "20"} {
		_, w := settledCost(t, costHeader, http.MethodGet, headers("X-Cost", said))
		if got := w.Result().Header.Get("X-RateLimit-Cost"); got != want {
			t.Errorf("cost %s: X-RateLimit-Cost %q, want %q", said, got, want)
		}
	}
	_, w := settledCost(t, costHeader, http.MethodGet, headers("Trailer", "X-Cost"))
	if got := w.Result().Header.Get("X-RateLimit-Cost"); got != "10" {
		t.Errorf("X-RateLimit-Cost %q of a cost that comes behind the body, want the estimate", got)
	}
	_, w = settledCost(t, costHeader, http.MethodGet, headers("Content-Length", "0"))
	if got := w.Result().Header.Get("X-RateLimit-Cost"); got != "20" {
		t.Errorf("X-RateLimit-Cost %q of a cost that does not come, want the default", got)
	}
	if _, w := settledCost(t, costJSON, http.MethodGet, body("application/json", `{}`)); w.Result().Header.Get("X-RateLimit-Cost") != "10" {
		t.Errorf("X-RateLimit-Cost %q, want the estimate", w.Result().Header.Get("X-RateLimit-Cost"))
	}
}

// TestTheCostOfAnErrorIsReported: if the upstream is down, error routes or the server answer, and
// their response reports the final cost.
func TestTheCostOfAnErrorIsReported(t *testing.T) {
	away := func(http.ResponseWriter, *http.Request) error {
		return caddyhttp.Error(http.StatusBadGateway, reverseproxy.NewDialError(errors.New("away")))
	}
	for rule, want := range map[string]string{costHeader: "20", `"cost":5,` + noErrors: "0"} {
		cost, w := settledCost(t, rule, http.MethodGet, away)
		if got := w.Header().Get("X-RateLimit-Cost"); got != want || fmt.Sprint(cost) != want {
			t.Errorf("%s: X-RateLimit-Cost %q of what cost %d, want %s", rule, got, cost, want)
		}
	}
}

// TestAnAbandonedBody: a successful response to HEAD, a 304 and a part of a document cost the
// maximum, because the whole document cannot be read. A 204, or a 404 to HEAD, costs the default.
func TestAnAbandonedBody(t *testing.T) {
	part := func(status int, fields ...string) answeringUpstream {
		return func(w http.ResponseWriter, _ *http.Request) error {
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			w.WriteHeader(status)
			return nil
		}
	}
	for name, c := range map[string]struct {
		method string
		answer answeringUpstream
		want   int64
	}{
		"HEAD":          {http.MethodHead, body("application/json", `{"usage":{"total_tokens":33}}`), 100},
		"a 304":         {http.MethodGet, part(http.StatusNotModified), 100},
		"a part":        {http.MethodGet, part(http.StatusPartialContent, "Content-Type", "application/json"), 100},
		"several parts": {http.MethodGet, part(http.StatusPartialContent, "Content-Type", "multipart/byteranges; boundary=x"), 100},
		"a range":       {http.MethodGet, part(http.StatusOK, "Content-Range", "bytes 0-1/9"), 100},
		"a 404 of HEAD": {http.MethodHead, part(http.StatusNotFound), 20},
		"a 204":         {http.MethodGet, part(http.StatusNoContent), 20},
		"all of it":     {http.MethodGet, body("application/json", `{"usage":{"total_tokens":33}}`), 33},
	} {
		if cost, _ := settledCost(t, costJSON, c.method, c.answer); cost != c.want {
			t.Errorf("%s: it cost %d, want %d", name, cost, c.want)
		}
	}
}

func TestAClientThatLeavesGetsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newProvisioned(t, `{"name":"leaves","rules":[{"name":"r","limit":"9/30d fixed_window",`+failedLogins+`}]}`)
		r := requestFor(http.MethodGet, "/")
		ctx, leave := context.WithCancel(r.Context())
		leave()
		// Caddy's reverse_proxy answers 499 when the client has gone.
		if err := h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx), caddyhttp.HandlerFunc(respondWith(499))); err != nil {
			t.Fatal(err)
		}
		if got := usedUnits(t, h, "/"); got != 1 {
			t.Errorf("%d used, want 1: the login may have failed", got)
		}
		// An upstream answers 499 although the client has not gone.
		if err := h.ServeHTTP(httptest.NewRecorder(), requestFor(http.MethodGet, "/"), caddyhttp.HandlerFunc(respondWith(499))); err != nil {
			t.Fatal(err)
		}
		if got := usedUnits(t, h, "/"); got != 1 {
			t.Errorf("%d used, want 1", got)
		}
	})
}

// TestAClientThatLeavesBeforeTheHeader: encode holds the header of a response back until its body
// begins. If the client leaves in between, the cost is the one for unread responses (`unread`), or
// the cost in the header if that is more.
func TestAClientThatLeavesBeforeTheHeader(t *testing.T) {
	const unread = `"cost_after":{"header":"X-Cost","estimate":10,"max":1000,"unread":100}`
	for name, c := range map[string]struct {
		cost  string // the cost in the header; "" if no header is written
		want  int64
		panic bool
	}{
		"the cost is more":           {"900", 900, true},
		"the cost is less":           {"30", 100, true},
		"the header was not written": {"", 100, true},
		"no panic":                   {"900", 900, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newProvisioned(t, `{"name":"before","rules":[{"name":"r","limit":"1000/30d fixed_window",`+unread+`}]}`)
			r := requestFor(http.MethodGet, "/")
			ctx, leave := context.WithCancel(r.Context())
			func() {
				defer func() { _ = recover() }() // as the server does
				_ = h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx), caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
					leave()
					if c.cost != "" { // encode writes the header when reverse_proxy panics
						w.Header().Set("X-Cost", c.cost)
						w.WriteHeader(http.StatusOK)
					}
					if c.panic {
						panic(http.ErrAbortHandler)
					}
					return nil
				}))
			}()
			if got := usedUnits(t, h, "/"); got != c.want {
				t.Errorf("%s: it cost %d, want %d", name, got, c.want)
			}
		})
	}
}

// TestParallelLoginsAreReserved: all requests count until their responses are known.
func TestParallelLoginsAreReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newProvisioned(t, `{"name":"parallel","rules":[{"name":"r","limit":"3/30d fixed_window",`+failedLogins+`}]}`)
		answer := make(chan struct{})
		var codes [5]int
		for i := range codes {
			go func() {
				w := httptest.NewRecorder()
				_ = h.ServeHTTP(w, requestFor(http.MethodPost, "/"), caddyhttp.HandlerFunc(
					func(w http.ResponseWriter, _ *http.Request) error {
						<-answer
						w.WriteHeader(http.StatusOK)
						return nil
					}))
				codes[i] = w.Code
			}()
			synctest.Wait()
		}
		close(answer)
		synctest.Wait()
		if got := fmt.Sprint(codes); got != "[200 200 200 429 429]" {
			t.Errorf("statuses %s", got)
		}
		if got := usedUnits(t, h, "/"); got != 0 {
			t.Errorf("%d used, want 0: no login failed", got)
		}
	})
}

// TestSendfileWithoutSettlement: a body that no settlement reads is copied by the fastest
// available method.
func TestSendfileWithoutSettlement(t *testing.T) {
	for rule, direct := range map[string]bool{noErrors: true, costHeader: true, costJSON: false} {
		synctest.Test(t, func(t *testing.T) {
			h := newProvisioned(t, `{"name":"sendfile","rules":[{"name":"r","limit":"1000/30d",`+rule+`}]}`)
			w := &copyingWriter{ResponseRecorder: httptest.NewRecorder()}
			_ = h.ServeHTTP(w, requestFor(http.MethodGet, "/"), caddyhttp.HandlerFunc(
				func(w http.ResponseWriter, _ *http.Request) error {
					w.Header().Set("Content-Type", "application/json")
					_, err := io.Copy(w, struct{ io.Reader }{strings.NewReader(`{"usage":{"total_tokens":7}}`)})
					return err
				}))
			if w.direct != direct {
				t.Errorf("%s: read directly: %v, want %v", rule, w.direct, direct)
			}
			if got := w.Body.String(); got != `{"usage":{"total_tokens":7}}` {
				t.Errorf("%s: body %q", rule, got)
			}
		})
	}
}

// copyingWriter is a response writer that has its own ReadFrom.
type copyingWriter struct {
	*httptest.ResponseRecorder
	direct bool
}

func (c *copyingWriter) ReadFrom(r io.Reader) (int64, error) {
	c.direct = true
	return io.Copy(c.ResponseRecorder, r)
}

var _ core.Answer = (*settlement)(nil)
