// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// shop is a policy that uses most features of policies.
const shop = `
name: shop
rules:
  - { name: api, match: { path: /api/* }, limit: 2/1h fixed_window }
  - { name: ai, match: { path: /ai }, limit: 100/1h fixed_window, cost_after: { json: usage.total, estimate: 10, max: 50 } }
  - { name: slow, match: { path: /slow }, limit: 1/100ms fixed_window, action: throttle, throttle: { max_delay: 5s, max_waiting: 3 } }
  - { name: who, match: { path: /who, header: { X-Plan: gold } }, limit: 7/1h }
`

// testBridge is a bridge under test, with its policy file.
type testBridge struct {
	t     testing.TB
	b     *Bridge
	file  string
	store *breakableStore
}

// breakableStore is a store that can be made to fail.
type breakableStore struct {
	*memstore.Store
	fails error
}

func (s *breakableStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if s.fails != nil {
		return s.fails
	}
	return s.Store.Take(ctx, checks, results)
}

func open(t testing.TB, policy string, change func(*Options)) *testBridge {
	t.Helper()
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := &testBridge{t: t, file: filepath.Join(t.TempDir(), "policy.yaml"), store: &breakableStore{Store: memory}}
	h.write(policy)
	o := Options{PolicyFile: h.file, Store: h.store}
	if change != nil {
		change(&o)
	}
	if h.b, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.b.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// runInBubble runs a test of a bridge with the policy shop in simulated time, which advances only
// while all goroutines wait. runInBubble begins on a whole hour, at the start of windows.
func runInBubble(t *testing.T, story func(*testBridge)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		d, err := policyfile.Decode("shop", policyfile.YAML, []byte(shop))
		if err != nil {
			t.Fatal(err)
		}
		story(open(t, shop, func(o *Options) { o.PolicyFile, o.Policy = "", d }))
	})
}

func (h *testBridge) write(policy string) {
	h.t.Helper()
	if err := os.WriteFile(h.file, []byte(policy), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// testBridge.question returns a question about a GET from an address.
func (h *testBridge) question(path, peer string) wire.Item {
	reads := formOf(h.b.policy.Current()).inputs
	return wire.Item{Kind: wire.KindAsk, Ask: wire.Ask{Path: path, Method: "GET", Host: "shop.example",
		Peer: netip.MustParseAddr(peer), Headers: make([]wire.Value, len(reads.Headers)), Attrs: make([]wire.Value, len(reads.Attrs))}}
}

// testBridge.post sends a body to the bridge.
func (h *testBridge) post(body []byte, contentType string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/v1/check", bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, r)
	return w
}

// testBridge.call returns an encoded call with these items, which names the policy in force.
func (h *testBridge) call(items ...wire.Item) []byte {
	return callOf(h.b.policy.Current().ID, items...)
}

func callOf(version string, items ...wire.Item) []byte {
	body := wire.AppendCall(nil, version)
	for i := range items {
		body = wire.AppendItem(body, &items[i])
		if items[i].Kind >= wire.KindLease {
			wire.Leasing(body)
		}
	}
	return body
}

// testBridge.ask makes a call and returns its answers.
func (h *testBridge) ask(items ...wire.Item) []wire.Answer {
	h.t.Helper()
	return h.answers(h.post(h.call(items...), wire.ContentType), len(items))
}

// testBridge.askWithToken makes a call with the bridge's token and returns its answers.
func (h *testBridge) askWithToken(items ...wire.Item) []wire.Answer {
	h.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/v1/check", bytes.NewReader(h.call(items...)))
	r.Header.Set("Content-Type", wire.ContentType)
	r.Header.Set("Authorization", "Bearer "+h.b.options.Token)
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, r)
	return h.answers(w, len(items))
}

// testBridge.answers decodes the n answers in a reply.
func (h *testBridge) answers(w *httptest.ResponseRecorder, n int) (answers []wire.Answer) {
	h.t.Helper()
	if w.Code != http.StatusOK {
		h.t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	reply, err := wire.ReadReply(w.Body.Bytes())
	if err != nil {
		h.t.Fatal(err)
	}
	for {
		var a wire.Answer
		ok, err := reply.Next(&a)
		if err != nil {
			h.t.Fatal(err)
		}
		if !ok {
			break
		}
		answers = append(answers, a)
	}
	if len(answers) != n {
		h.t.Fatalf("%d answers to %d items", len(answers), n)
	}
	return answers
}

// testBridge.readUsed returns how many units of a path's limit the client with the address peer
// has used.
func (h *testBridge) readUsed(path, peer string) int64 {
	h.t.Helper()
	return h.readUsedIn(h.store.Store, path, peer)
}

// readUsedIn is like readUsed, but reads another store.
func (h *testBridge) readUsedIn(store counter.Store, path, peer string) int64 {
	h.t.Helper()
	var plan core.Plan
	item := h.question(path, peer)
	e := h.b.policy.Current()
	plan.Add(e.Ruleset, &wire.View{Ask: &item.Ask, Inputs: &formOf(e).inputs, At: micros(time.Now())})
	checks := plan.Checks()
	for i := range checks {
		checks[i].Op = counter.OpLook
	}
	if err := store.Take(context.Background(), checks, plan.Results()); err != nil {
		h.t.Fatal(err)
	}
	return checks[0].Limit.Count() - plan.Results()[0].Remaining
}

// testBridge.counted returns the value of a counter in /metrics, or 0 if the counter is missing.
func (h *testBridge) counted(name string) (n int) {
	h.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Authorization", "Bearer "+h.b.options.Token)
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, r)
	if _, rest, ok := strings.Cut(w.Body.String(), "\n"+name+" "); ok {
		if _, err := fmt.Sscan(rest, &n); err != nil {
			h.t.Fatal(err)
		}
	}
	return n
}
