// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// slowStore answers a call only when the test lets it.
type slowStore struct {
	counter.Store
	answer chan struct{}
}

func (s *slowStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	<-s.answer
	return s.Store.Take(ctx, checks, results)
}

// TestOneAddressLeavesCalls tests that one address cannot occupy all CallsMax places for calls in
// JSON. If it makes more calls at once than half of CallsMax, each for a different counter, the
// excess calls are answered 503. The bridge still decides a call for another address.
func TestOneAddressLeavesCalls(t *testing.T) {
	store := &slowStore{answer: make(chan struct{})}
	h := open(t, "name: keyed\nrules:\n  - {name: keyed, per: [\"header:X-Id\"], unverified: true, limit: 3/1h}\n", func(o *Options) {
		store.Store, o.Store, o.CallsMax = o.Store, store, 6
	})
	const flood = 9
	codes := make(chan int, flood)
	post := func(ip, id string) int {
		return h.post([]byte(`{"path":"/","ip":"`+ip+`","headers":{"X-Id":"`+id+`"}}`), "application/json").Code
	}
	for i := range flood {
		go func() { codes <- post("192.0.2.1", string(rune('a'+i))) }()
	}
	for range flood - 3 {
		if code := <-codes; code != 503 {
			t.Errorf("beyond its share, the client is answered %d", code)
		}
	}
	other, denied := make(chan int, 1), 0
	for denied < 4 { // two addresses can share a count by chance
		go func() { other <- post("192.0.2."+strconv.Itoa(denied+2), "other") }()
		eventually.Until(t, 10*time.Second, "the other client is decided", func() bool { return h.b.under.Load() == 4 || len(other) > 0 })
		if len(other) == 0 {
			break
		}
		<-other
		denied++
	}
	close(store.answer)
	if denied == 4 {
		t.Error("other clients are denied")
	} else if code := <-other; code != 200 {
		t.Errorf("another client is answered %d", code)
	}
	for range 3 {
		if code := <-codes; code != 200 {
			t.Errorf("within its share, the client is answered %d", code)
		}
	}
	if n := h.b.under.Load(); n != 0 {
		t.Errorf("%d are under way", n)
	}
}
