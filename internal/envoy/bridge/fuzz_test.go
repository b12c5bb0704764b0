// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// FuzzCheck: every call is answered, with one answer for each item or with an error status.
func FuzzCheck(f *testing.F) {
	h := open(f, shop, nil)
	whole := h.call(h.question("/api/x", "192.0.2.1"), h.question("/ai", "2001:db8::1"), settlementItem(h.admitted(), "3"))
	f.Add(whole, true)
	f.Add(whole[:40], true)
	f.Add(h.call(), true)
	f.Add([]byte(`{"method":"GET","path":"/api/x","ip":"192.0.2.7","headers":{"x-plan":"gold"},"attrs":{"a":"b"}}`), false)
	f.Fuzz(func(t *testing.T, body []byte, compact bool) {
		h := *h
		h.t = t
		contentType := "application/json"
		if compact {
			contentType = wire.ContentType
		}
		w := h.post(body, contentType)
		switch w.Code {
		case 400, 413:
			return
		case 200:
		default:
			t.Fatalf("status %d", w.Code)
		}
		if !compact {
			if !json.Valid(w.Body.Bytes()) {
				t.Fatalf("%s", w.Body)
			}
			return
		}
		reader, err := wire.ReadCall(body)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for item := new(wire.Item); ; n++ {
			if ok, _ := reader.Next(item); !ok {
				break
			}
		}
		h.answers(w, n)
	})
}
