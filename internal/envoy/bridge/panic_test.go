// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/status"
	"github.com/penstock/penstock/internal/test/eventually"
)

// panickingVerifier is a verifier that panics on every credential.
type panickingVerifier struct{}

func (panickingVerifier) Verify(string) (*policy.Identity, policy.CredentialState) { panic("provoked") }

// TestAPanicFailsOneQuestion: a panic fails one question. The other questions of its call are
// decided.
func TestAPanicFailsOneQuestion(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(keys, []byte("keys = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	h := open(t, "name: shop\nidentify: [{ api_key: { keys_file: "+keys+" } }, { ip: {} }]\nrules: [{ name: api, limit: 2/1h fixed_window }]\n",
		func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	v := h.b.policy.Current()
	var err error
	if v.Ruleset, err = v.Document.CompileWith([]policy.Verifier{panickingVerifier{}, nil}); err != nil {
		t.Fatal(err)
	}
	bad := h.question("/", "192.0.2.1")
	i := slices.Index(formOf(v).inputs.Headers, "X-Api-Key")
	bad.Ask.Headers[i] = wire.Value{Text: "key", Given: true}
	good := h.question("/", "192.0.2.1")
	for range 3 {
		h.ask(bad)
	}
	answers := h.ask(good, bad, good, good)
	for i, want := range []wire.Status{wire.StatusOK, wire.StatusInvalid, wire.StatusOK, wire.StatusOK} {
		if got := answers[i].Status; got != want {
			t.Errorf("answer %d: status %d, want %d", i, got, want)
		}
	}
	if answers[2].Results[0].Denied || !answers[3].Results[0].Denied {
		t.Errorf("not decided by the limit: %+v", answers)
	}
	if n := strings.Count(log.String(), "provoked"); n == 0 || n > 2 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
}

// fusedStore is a store that panics at the nth call after fuse was set to n.
type fusedStore struct {
	counter.Store
	fuse atomic.Int64
}

func (f *fusedStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if f.fuse.Add(-1) == 0 {
		panic("provoked")
	}
	return f.Store.Take(ctx, checks, results)
}

// fusedBridge returns a bridge with the policy shop, its store, which can panic, and its log.
func fusedBridge(t *testing.T, change func(*Options)) (*testBridge, *fusedStore, *eventually.Journal) {
	log, store := new(eventually.Journal), new(fusedStore)
	h := open(t, strings.Replace(shop, "1/100ms", "1/1s", 1), func(o *Options) {
		store.Store, o.Logger = o.Store, log.Logger()
		o.Store = store
		if change != nil {
			change(o)
		}
	})
	return h, store, log
}

// TestAPanicKeepsNoPlaceOfRequestsForLimits: if the store panics while limits are read, the request
// leaves its place, so that further requests are answered.
func TestAPanicKeepsNoPlaceOfRequestsForLimits(t *testing.T) {
	h, store, _ := fusedBridge(t, nil)
	handler := h.b.Handler()
	for i := range status.UnderMax + 1 {
		store.fuse.Store(1)
		if code, _, text := lookUpLimits(handler, statusPeerField, fmt.Sprintf("192.0.2.%d:4711", i)); code != 500 {
			t.Fatalf("request %d: %d %s", i, code, text)
		}
	}
}

// TestAPanicOfTheStore: a panic of the store fails only the question or the settlement that caused
// it, even in a batch or while a question waits.
func TestAPanicOfTheStore(t *testing.T) {
	h, store, log := fusedBridge(t, nil)
	api, slow := h.question("/api/x", "192.0.2.1"), h.question("/slow", "192.0.2.1")
	store.fuse.Store(2)
	a := h.ask(api, api, api)
	if a[0].Status != wire.StatusOK || a[1].Status != wire.StatusInvalid || a[2].Status != wire.StatusOK || a[2].Results[0].Remaining != 0 {
		t.Errorf("%+v", a)
	}
	slow.Kind = wire.KindWait
	store.fuse.Store(1)
	if a := h.ask(slow)[0]; a.Status != wire.StatusInvalid {
		t.Errorf("one that waits: %+v", a)
	}
	h.ask(slow)
	store.fuse.Store(2) // the second question is in the throttle queue
	if a := h.ask(slow)[0]; a.Status != wire.StatusInvalid || h.b.lines.Waiting() != 0 {
		t.Errorf("one that stands in line: %+v, %d wait", a, h.b.lines.Waiting())
	}
	if h.b.under.Load() != 0 || h.b.asking.Load() != 0 {
		t.Errorf("%d calls and %d questions are under way", h.b.under.Load(), h.b.asking.Load())
	}
	first, second := h.admitted(), h.admitted()
	h.awaitUsed(20)
	store.fuse.Store(1)
	h.ask(settlementItem(first, "35"))
	eventually.Until(t, 10*time.Second, "it has panicked", func() bool { return store.fuse.Load() < 1 })
	h.ask(settlementItem(second, "3"))
	h.awaitUsed(13) // the reserved units of the first request stay charged
	if text := log.String(); !strings.Contains(text, "provoked") || !strings.Contains(text, "panic_test.go") {
		t.Errorf("the log does not say where: %s", text)
	}
}

// TestAPanicElsewhere: a panic ends neither the process nor other calls of the connection.
func TestAPanicElsewhere(t *testing.T) {
	editing := false
	h, _, log := fusedBridge(t, func(o *Options) {
		o.Reachable = func(context.Context) error { panic("provoked by a look") }
		o.Changed = func(string, []byte) {
			if editing {
				panic("provoked by an edit")
			}
		}
	})
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	if w.Code != 500 || !strings.Contains(log.String(), "provoked by a look") {
		t.Error(w.Code, w.Body, log)
	}
	h.b.quiet.Store(0)
	editing = true
	h.write(strings.Replace(shop, "2/1h", "3/1h", 1))
	if err := h.b.Reload(); err == nil || !strings.Contains(log.String(), "provoked by an edit") {
		t.Error(errors.Join(err, errors.New(log.String())))
	}
	if a := h.ask(h.question("/api/x", "192.0.2.1")); a[0].Status != wire.StatusOK {
		t.Error(a)
	}
}
