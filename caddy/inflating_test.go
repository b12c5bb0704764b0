// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/internal/usage/inflate"
)

// TestResponsesDoNotWaitForDecompression tests that a response with a cost in a compressed body
// ends although other bodies still wait to be decompressed, and that its cost is charged in the
// end. A body beyond the places of its address is not read, and one of another address is.
func TestResponsesDoNotWaitForDecompression(t *testing.T) {
	var text bytes.Buffer
	w := gzip.NewWriter(&text)
	_, _ = w.Write([]byte(`{"usage":3}`))
	_ = w.Close()
	upstream := func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Encoding", "gzip")
		return body("application/json", text.String())(w, r)
	}
	synctest.Test(t, func(t *testing.T) {
		h := newProvisioned(t, `{"name":"settle","rules":[{"name":"r","per":[],"limit":"1000/30d fixed_window",`+
			`"cost_after":{"json":"usage","estimate":1,"max":100}}]}`)
		respond := func(address string) {
			r := requestFor(http.MethodGet, "/")
			r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)[caddyhttp.ClientIPVarKey] = address
			if err := h.ServeHTTP(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(upstream)); err != nil {
				t.Error(err)
			}
		}
		start := make(chan bool)
		for range runtime.GOMAXPROCS(0) {
			inflating.Add(0, func() { <-start })
		}
		for range inflate.SourceMax {
			respond("192.0.2.7")
		}
		want := int64(inflate.SourceMax)
		if used := usedUnits(t, h, "/"); used != want {
			t.Errorf("%d units are used before any body is decompressed, want %d", used, want)
		}
		respond("192.0.2.7") // its body is not read
		respond("192.0.2.8")
		if used := usedUnits(t, h, "/"); used != want+100+1 {
			t.Errorf("%d units are used after a body without a place, want %d", used, want+100+1)
		}
		close(start)
		if used := usedUnits(t, h, "/"); used != 3*want+100+3 {
			t.Errorf("%d units are used in the end, want %d", used, 3*want+100+3)
		}
	})
}
