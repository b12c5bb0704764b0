// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/penstock/penstock/internal/test/conformance"
)

// emulator is a worker of Envoy with the filter, based on the SDK's emulator. It adds behavior of
// Envoy that the filter depends on and that the SDK's emulator lacks.
type emulator struct {
	host   proxytest.HostEmulator
	worker *worker
	bridge http.Handler
	called int // number of the filter's calls that were answered
}

// worker is a VM whose queues notify the filter later, as Envoy's queues do. The SDK's queues
// interrupt the filter.
type worker struct {
	types.VMContext
	types.PluginContext
	ready  []uint32
	stream uint32 // the stream whose callback is running
}

// NewPluginContext implements [types.VMContext].
func (w *worker) NewPluginContext(id uint32) types.PluginContext {
	w.PluginContext = w.VMContext.NewPluginContext(id)
	return w
}

// OnQueueReady implements [types.PluginContext]. OnQueueReady restores the stream's context, which
// the emulator has replaced with the plugin's.
func (w *worker) OnQueueReady(queue uint32) {
	w.ready = append(w.ready, queue)
	if w.stream != 0 {
		_ = proxywasm.SetEffectiveContext(w.stream) // the emulator returns no error here
	}
}

// worker.wake notifies the filter of its ready queues.
func (w *worker) wake(t testing.TB) {
	t.Helper()
	for len(w.ready) > 0 {
		queue := w.ready[0]
		w.ready = w.ready[1:]
		if err := proxywasm.SetEffectiveContext(proxytest.PluginContextID); err != nil {
			t.Fatal(err)
		}
		w.PluginContext.OnQueueReady(queue)
	}
}

// emulate starts the filter in an emulator, in front of a bridge.
func emulate(t testing.TB, vm types.VMContext, bridge http.Handler) *emulator {
	t.Helper()
	log.SetOutput(io.Discard) // the emulator logs every call
	w := &worker{VMContext: vm}
	host, reset := proxytest.NewHostEmulator(proxytest.NewEmulatorOption().WithVMContext(w).
		WithPluginConfiguration([]byte("poll: 1s\ndeadline: 10s\n")))
	t.Cleanup(reset)
	// otherwise the next plugin of the same VM would continue with this policy
	t.Cleanup(func() { host.FinishVM() })
	if host.StartVM() != types.OnVMStartStatusOK || host.StartPlugin() != types.OnPluginStartStatusOK {
		t.Fatalf("the filter does not start: %q", host.GetCriticalLogs())
	}
	return &emulator{host: host, worker: w, bridge: bridge}
}

// answerCalls lets the bridge answer every call of the filter, including calls caused by answers.
func (e *emulator) answerCalls(t testing.TB) {
	t.Helper()
	for {
		e.worker.wake(t)
		calls := e.host.GetCalloutAttributesFromContext(proxytest.PluginContextID)
		if e.called == len(calls) {
			return
		}
		call := calls[e.called]
		e.called++
		method, path := pseudo(call.Headers, ":method"), pseudo(call.Headers, ":path")
		r := httptest.NewRequest(method, path, bytes.NewReader(call.Body))
		for _, field := range call.Headers {
			if field[0][0] != ':' {
				r.Header.Add(field[0], field[1])
			}
		}
		w := httptest.NewRecorder()
		e.bridge.ServeHTTP(w, r)
		headers := [][2]string{{":status", strconv.Itoa(w.Code)}}
		for name, values := range w.Header() {
			headers = append(headers, [2]string{name, values[0]})
		}
		e.host.CallOnHttpCallResponse(call.CalloutID, headers, nil, w.Body.Bytes())
	}
}

func pseudo(headers [][2]string, name string) string {
	for _, field := range headers {
		if field[0] == name {
			return field[1]
		}
	}
	return ""
}

// emulator.ask sends a request and the upstream's response through the filter.
func (e *emulator) ask(t testing.TB, r *conformance.Request) (a conformance.Answer) {
	t.Helper()
	a.Since = time.Now().Unix()
	_, query, _ := strings.Cut(r.Target, "?")
	e.set(t, query, "request", "query")
	e.set(t, "HTTP/1.1", "request", "protocol")
	e.set(t, "127.0.0.1:4711", "source", "address")
	id := e.host.InitializeHttpContext()
	e.worker.stream = id
	action := e.host.CallOnRequestHeaders(id, requestHeaders(r), true)
	e.answerCalls(t)
	local := e.host.GetSentLocalResponse(id)
	if action == types.ActionPause {
		action = e.host.GetCurrentHttpStreamAction(id)
	}
	switch {
	case local != nil:
		e.localReply(&a, id, r, local)
	case action == types.ActionContinue:
		e.passResponse(&a, id, r)
	default:
		t.Fatalf("the request waits for ever: %q", e.host.GetErrorLogs())
	}
	e.host.CompleteHttpContext(id)
	e.answerCalls(t)
	a.Until = time.Now().Unix()
	return a
}

// emulator.set sets a property. The value "" removes it, for which the emulator has no function.
func (e *emulator) set(t testing.TB, value string, path ...string) {
	t.Helper()
	if value != "" {
		if err := e.host.SetProperty(path, []byte(value)); err != nil {
			t.Fatal(err)
		}
		return
	}
	field := reflect.ValueOf(e.host).Elem().FieldByName("properties")
	properties := *(*map[string][]byte)(unsafe.Pointer(field.UnsafeAddr()))
	delete(properties, strings.Join(path, "\x00"))
	if _, err := e.host.GetProperty(path); err == nil {
		t.Fatalf("the property %v is still there", path)
	}
}

// requestHeaders returns the headers that the filter sees in an Envoy with use_remote_address.
func requestHeaders(r *conformance.Request) [][2]string {
	headers := [][2]string{{":method", r.Method}, {":path", r.Target}, {":authority", r.Host}, {":scheme", "http"}}
	var forwarded []string
	for _, field := range r.Header {
		if field[0] == "X-Forwarded-For" {
			forwarded = append(forwarded, field[1])
			continue
		}
		headers = append(headers, field)
	}
	return append(headers, [2]string{"x-forwarded-for", strings.Join(append(forwarded, "127.0.0.1"), ",")})
}

// passResponse sends the upstream's response through the filter.
func (e *emulator) passResponse(a *conformance.Answer, id uint32, r *conformance.Request) {
	says := &r.Says
	bodied := r.Method != http.MethodHead && says.Status != http.StatusNoContent && says.Status != http.StatusNotModified
	headers := [][2]string{{":status", strconv.Itoa(says.Status)}}
	if !hasField(says.Header, "Content-Type") {
		headers = append(headers, [2]string{"content-type", "text/plain"})
	}
	if len(says.Trailer) == 0 {
		headers = append(headers, [2]string{"content-length", strconv.Itoa(len(says.Body))})
	}
	headers = append(headers, says.Header...)
	e.host.CallOnResponseHeaders(id, headers, !bodied)
	if bodied {
		half := len(says.Body) / 2 // bodies arrive in pieces
		e.host.CallOnResponseBody(id, []byte(says.Body[:half]), false)
		e.host.CallOnResponseBody(id, []byte(says.Body[half:]), len(says.Trailer) == 0)
		a.Body = says.Body
	}
	if len(says.Trailer) > 0 {
		e.host.CallOnResponseTrailers(id, says.Trailer)
	}
	a.Passed, a.Status = true, says.Status
	a.Header = headerOf(e.host.GetCurrentResponseHeaders(id))
}

func hasField(fields [][2]string, name string) bool {
	for _, field := range fields {
		if strings.EqualFold(field[0], name) {
			return true
		}
	}
	return false
}

// localReply handles a local reply like Envoy: it converts the reply to gRPC for gRPC requests, and
// passes it through the filter again.
func (e *emulator) localReply(a *conformance.Answer, id uint32, r *conformance.Request, local *proxytest.LocalHttpResponse) {
	a.Status, a.Body = int(local.StatusCode), string(local.Data)
	headers := append([][2]string{{":status", strconv.Itoa(a.Status)}}, local.Headers...)
	if asked := headerOf(r.Header).Get("Content-Type"); asked == "application/grpc" {
		a.Status, a.Body = http.StatusOK, ""
		headers[0][1] = "200"
		headers = append(headers, [2]string{"content-type", asked}, [2]string{"grpc-status", strconv.Itoa(int(local.GRPCStatus))},
			[2]string{"grpc-message", strings.ReplaceAll(url.PathEscape(string(local.Data)), "%20", " ")})
	}
	if r.Method == http.MethodHead {
		a.Body = ""
	}
	e.host.CallOnResponseHeaders(id, headers, a.Body == "")
	a.Header = headerOf(e.host.GetCurrentResponseHeaders(id))
}

func headerOf(fields [][2]string) http.Header {
	header := http.Header{}
	for _, field := range fields {
		if field[0][0] != ':' {
			header.Add(field[0], field[1])
		}
	}
	return header
}
