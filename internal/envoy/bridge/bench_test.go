// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/test/racescale"
)

// shelf is a policy with three rules, all of which apply to every request.
const shelf = `
name: shop
rules:
  - { name: all, per: [], limit: 100000000/1h }
  - { name: api, limit: 100000000/1h }
  - { name: burst, limit: 100000000/1s burst 100000000 }
`

// sink is a response writer that discards the response.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

// calling returns a function that makes one call of n questions, without a network.
func calling(tb testing.TB, h *testBridge, n int) func() {
	items := make([]wire.Item, n)
	for i := range items {
		items[i] = h.question("/api/x", fmt.Sprintf("192.0.2.%d", i%250))
	}
	body := h.call(items...)
	reader, handler := bytes.NewReader(nil), h.b.Handler()
	r, err := http.NewRequest(http.MethodPost, "/v1/check", reader)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header.Set("Content-Type", wire.ContentType)
	w := &sink{http.Header{}}
	return func() {
		reader.Reset(body)
		r.Body = http.NoBody
		r.Body = reading{reader}
		handler.ServeHTTP(w, r)
	}
}

type reading struct{ *bytes.Reader }

func (reading) Close() error { return nil }

// decideAlone returns a function that decides one request with package core and the store, without
// a bridge.
func decideAlone(tb testing.TB, h *testBridge) func() {
	var plan core.Plan
	e := h.b.policy.Current()
	item := h.question("/api/x", "192.0.2.1")
	attrs := &wire.View{Ask: &item.Ask, Inputs: &formOf(e).inputs, At: micros(time.Now())}
	return func() {
		plan.Reset()
		plan.Add(e.Ruleset, attrs)
		if err := h.store.Take(context.Background(), plan.Checks(), plan.Results()); err != nil {
			tb.Fatal(err)
		}
		plan.Decide()
	}
}

// BenchmarkCall measures a question in calls of 1 question and of 64, compared with core alone.
func BenchmarkCall(b *testing.B) {
	h := open(b, shelf, nil)
	b.Run("core alone", func(b *testing.B) {
		one := decideAlone(b, h)
		b.ReportAllocs()
		for b.Loop() {
			one()
		}
	})
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("questions=%d", n), func(b *testing.B) {
			call := calling(b, h, n)
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/question")
		})
	}
}

// TestAQuestionAllocatesNothing: the allocations of a call do not grow with the number of its
// questions.
func TestAQuestionAllocatesNothing(t *testing.T) {
	h := open(t, strings.ReplaceAll(shelf, "rules:", "identify: [ip: {}]\nrules:"), nil)
	allocs := func(n int) float64 {
		call := calling(t, h, n)
		call()
		return testing.AllocsPerRun(50, call)
	}
	one, many := allocs(1), allocs(64)
	t.Logf("%v allocations of a call of 1 question, %v of 64", one, many)
	if racescale.Fewer(100) < 100 {
		return // because under the race detector, pools drop calls
	}
	if one > 8 || many > one+4 { // because the garbage collector may empty the pool
		t.Errorf("%v allocations of a call of 1 question, %v of 64", one, many)
	}
}
