// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// stallingStore answers calls about one client only after ctx is done, although it charges them. It
// answers all other calls at once.
type stallingStore struct {
	counter.Store
	client string
}

func (s *stallingStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := s.Store.Take(ctx, checks, results); err != nil || !bytes.Contains(checks[0].Key, []byte(s.client)) {
		return err
	}
	<-ctx.Done()
	return fmt.Errorf("%w: %w", counter.ErrOverloaded, ctx.Err())
}

// TakeAll implements [counter.Batcher].
func (s *stallingStore) TakeAll(ctx context.Context, calls []counter.Call) {
	var taking sync.WaitGroup
	for i := range calls {
		taking.Go(func() { calls[i].Err = s.Take(ctx, calls[i].Checks, calls[i].Results) })
	}
	taking.Wait()
}

// TestASlowStoreIsAnsweredInTime: if the store does not answer about one client, the other
// questions of the call are answered before the filter considers the bridge unreachable. A question
// that the store does not answer is denied.
func TestASlowStoreIsAnsweredInTime(t *testing.T) {
	const client, other = "192.0.2.1", "192.0.2.2"
	synctest.Test(t, func(t *testing.T) {
		d, err := policyfile.Decode("shop", policyfile.YAML, []byte(shop))
		if err != nil {
			t.Fatal(err)
		}
		h := open(t, shop, func(o *Options) {
			o.PolicyFile, o.Policy, o.Store, o.Shared = "", d, &stallingStore{o.Store, client}, true
		})
		slow, quick, free := h.question("/api/x", client), h.question("/api/x", other), h.question("/other", client)
		begun := time.Now()
		a := h.ask(slow, quick, free)
		for i, want := range []wire.Status{wire.StatusBusy, wire.StatusOK, wire.StatusOK} {
			if a[i].Status != want {
				t.Errorf("answer %d: %+v, want status %d", i, a[i], want)
			}
		}
		if len(a[1].Results) != 1 || a[1].Results[0].Denied {
			t.Errorf("the other client: %+v", a[1])
		}
		if a := h.ask(slow); a[0].Status != wire.StatusBusy {
			t.Errorf("alone: %+v", a[0])
		}
		if since := time.Since(begun); since != 2*answerTime || since >= 2*time.Duration(wire.SilentMin)*time.Microsecond {
			t.Errorf("two calls are answered after %v", since)
		}
		if n := h.counted(`penstock_requests_total{outcome="degraded_denied",policy="shop",rule="api"}`); n != 2 {
			t.Errorf("%d requests are counted as denied, want 2", n)
		}
	})
}

// notSent is the error of a call that the store has not executed.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }
func (notSent) Unsent() bool    { return true }

// TestAFilterLearnsWhetherItMayAskAgain: a question that the store may have charged is answered
// with StatusLate, because the filter would repeat it after StatusBusy. A filter of an earlier
// release does not read StatusLate, so it gets StatusBusy.
func TestAFilterLearnsWhetherItMayAskAgain(t *testing.T) {
	h := open(t, shop, nil)
	for _, c := range []struct {
		announced string
		fails     error
		want      wire.Status
	}{
		{wire.ReadsLate, fmt.Errorf("%w: late", counter.ErrOverloaded), wire.StatusLate},
		{wire.ReadsLate, notSent{fmt.Errorf("%w: full", counter.ErrOverloaded)}, wire.StatusBusy},
		{wire.ReadsLate, fmt.Errorf("%w: a key", counter.ErrInvalid), wire.StatusBusy},
		{wire.ReadsLate, counter.ErrUnavailable, wire.StatusUnavailable},
		{"1", fmt.Errorf("%w: late", counter.ErrOverloaded), wire.StatusBusy},
		{"", fmt.Errorf("%w: late", counter.ErrOverloaded), wire.StatusBusy},
	} {
		h.store.fails = c.fails
		r := httptest.NewRequest(http.MethodPost, "/v1/check", bytes.NewReader(h.call(h.question("/api/x", "192.0.2.1"))))
		r.Header.Set("Content-Type", wire.ContentType)
		if c.announced != "" {
			r.Header.Set(wire.LoansHeader, c.announced)
		}
		w := httptest.NewRecorder()
		h.b.Handler().ServeHTTP(w, r)
		if a := h.answers(w, 1)[0]; a.Status != c.want {
			t.Errorf("announced %q, error %q: status %d, want %d", c.announced, c.fails, a.Status, c.want)
		}
	}
}

// TestAHungServerOfARingDelaysNoOther: one Redis of a ring hangs, and its timeout is long.
// Questions about counters of the other Redis are decided, and all other questions are denied.
func TestAHungServerOfARingDelaysNoOther(t *testing.T) {
	servers := []*redistest.Server{redistest.StartTCP(t), redistest.StartTCP(t)}
	store, err := redisstore.New(redisstore.Options{Mode: redisstore.ModeRing, Addrs: []string{servers[0].Addr, servers[1].Addr},
		Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // never fails
	h := open(t, shop, func(o *Options) { o.Store, o.Shared = store, true })
	var items []wire.Item
	for i := range 32 {
		items = append(items, h.question("/api/x", fmt.Sprintf("192.0.2.%d", i+1)))
	}
	count := func() (n [6]int) {
		for _, a := range h.ask(items...) {
			n[a.Status]++
		}
		return n
	}
	eventually.Until(t, 10*time.Second, "both servers answer", func() bool { return count()[wire.StatusOK] == len(items) })
	servers[1].Pause()
	resume := sync.OnceFunc(servers[1].Resume)
	defer resume()
	hung := count()
	if hung[wire.StatusOK] == 0 || hung[wire.StatusBusy] == 0 || hung[wire.StatusOK]+hung[wire.StatusBusy] != len(items) {
		t.Errorf("one server hangs: %v answers by status", hung)
	}
	resume()
	eventually.Until(t, 10*time.Second, "both servers answer again", func() bool { return count()[wire.StatusOK] == len(items) })
}
