// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/test/eventually"
)

// settlementItem returns a filter's report of a response with a cost.
func settlementItem(receipt, cost string) wire.Item {
	s := wire.Settle{Receipt: receipt, Status: 200}
	if cost != "" {
		s.Numbers = []wire.Field{{Name: "usage.total", Text: cost}}
	}
	return wire.Item{Kind: wire.KindSettle, Settle: s}
}

// testBridge.admitted returns the receipt of a request to /ai. The request is charged 10 until its
// cost is known.
func (h *testBridge) admitted() string {
	h.t.Helper()
	a := h.ask(h.question("/ai", "192.0.2.1"))[0]
	if a.Status != wire.StatusOK || a.Results[0].Denied || a.Receipt == "" {
		h.t.Fatalf("%+v", a)
	}
	return a.Receipt
}

// testBridge.awaitUsed waits until the given number of units is used.
func (h *testBridge) awaitUsed(want int64) {
	h.t.Helper()
	eventually.Until(h.t, 10*time.Second, "it is settled", func() bool { return h.readUsed("/ai", "192.0.2.1") == want })
}

// TestSettlement: the cost in a response is more or less than the reserved units, absurd, or
// missing. Each receipt is valid once, even under a former policy.
func TestSettlement(t *testing.T) {
	h := open(t, shop, nil)
	if a := h.ask(h.question("/api/x", "192.0.2.1"))[0]; a.Receipt != "" {
		t.Error("a receipt for what costs the same in the end")
	}
	first := h.admitted()
	h.awaitUsed(10)
	// A settlement is sent together with questions.
	if a := h.ask(settlementItem(first, "35"), h.question("/other", "192.0.2.1")); a[0].Status != wire.StatusOK || a[1].Status != wire.StatusOK {
		t.Error(a)
	}
	h.awaitUsed(35)
	for range 2 {
		if a := h.ask(settlementItem(first, "35")); a[0].Status != wire.StatusInvalid {
			t.Error("redeemed again:", a)
		}
	}
	h.ask(settlementItem(h.admitted(), "3"))
	h.awaitUsed(38)
	h.ask(settlementItem(h.admitted(), "51")) // a cost beyond max charges the default, which is the estimate
	h.awaitUsed(48)
	old := h.admitted()
	h.awaitUsed(58)
	h.write(strings.Replace(shop, "2/1h", "9/1h", 1))
	if err := h.b.Reload(); err != nil {
		t.Fatal(err)
	}
	h.ask(settlementItem(old, "1"))
	h.awaitUsed(49)
	alone := h.admitted()
	item := settlementItem(alone, "0")
	item.Settle.Status = 0 // without a response, the reserved units stay charged
	if a := h.ask(item)[0]; a.Status != wire.StatusOK {
		t.Error(a)
	}
	h.awaitUsed(59)
	if a := h.ask(settlementItem(alone, "0"))[0]; a.Status != wire.StatusInvalid {
		t.Error("a receipt is good twice if nothing came of it:", a)
	}
	forgotten := h.admitted()
	for limit := range formerMax + 1 {
		h.write(strings.Replace(shop, "2/1h", fmt.Sprint(20+limit, "/1h"), 1))
		if err := h.b.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	if a := h.ask(settlementItem(forgotten, "1"))[0]; a.Status != wire.StatusUnknown {
		t.Error("by a policy that nobody knows any more:", a)
	}
	h.awaitUsed(69)
}

// TestForgedReceipts: a change of any byte invalidates a receipt. Another bridge's receipt is valid
// only with the same token.
func TestForgedReceipts(t *testing.T) {
	h, other := open(t, shop, nil), open(t, shop, nil)
	receipt := h.admitted()
	for i := range receipt {
		changed := []byte(receipt)
		changed[i] ^= 1
		for _, forged := range []string{string(changed), receipt[:i]} {
			if a := h.ask(settlementItem(forged, "1"))[0]; a.Status == wire.StatusOK {
				t.Fatalf("changed at byte %d it is good", i)
			}
		}
	}
	if a := h.ask(settlementItem(other.admitted(), "1"))[0]; a.Status != wire.StatusInvalid {
		t.Error("another bridge's receipt is good:", a)
	}
	h.awaitUsed(10)
	if a := h.ask(settlementItem(receipt, "1"))[0]; a.Status != wire.StatusOK {
		t.Error("the true one is not good any more:", a)
	}
	h.awaitUsed(1)
}

// TestReceiptsExpire: receipts expire, become invalid at a restart, and are valid at other bridges
// with the same token.
func TestReceiptsExpire(t *testing.T) {
	const start = 1_000_000 * counter.Second
	h := open(t, shop, nil)
	h.admitted()
	e := h.b.policy.Current()
	var s core.Settlement
	q := h.question("/ai", "192.0.2.1")
	var plan core.Plan
	plan.Add(e.Ruleset, &wire.View{Ask: &q.Ask, Inputs: &formOf(e).inputs, At: start})
	plan.Results()[0].Granted = 10
	plan.Decide()
	plan.Settlement(&s)
	one, two := newSealer("a token", start), newSealer("a token", start)
	other, later := newSealer("another token", start), newSealer("a token", start+counter.Second)
	receipt := one.seal(e.ID, &s, e.Ruleset, start)
	for name, c := range map[string]struct {
		sealer *sealer
		at     counter.Micros
		want   error
	}{
		"in time":            {one, start + receiptTTL - 1, nil},
		"late":               {one, start + receiptTTL, errExpired},
		"another bridge":     {two, start, nil},
		"another token":      {other, start, errForeign},
		"started since":      {later, start + 2*counter.Second, errExpired},
		"nobody has a token": {newSealer("", start), start, errForeign},
	} {
		o, err := c.sealer.open(receipt, receiptForm, c.at)
		if err != c.want || err == nil && (o.version != e.ID || o.expires != start+receiptTTL ||
			!bytes.Equal(o.plain, s.AppendCompact(nil, e.Ruleset))) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a, b := one.seal(e.ID, &s, e.Ruleset, start), one.seal(e.ID, &s, e.Ruleset, start); a[:33] == b[:33] {
		t.Error("two receipts have one number")
	}
}

// TestALateResponseIsCharged: if a response ends after its receipt has expired, its cost is
// charged, but nothing is refunded. A client can read a response as slowly as it likes.
func TestALateResponseIsCharged(t *testing.T) {
	h := open(t, shop, nil)
	h.admitted()
	v := h.b.policy.Current()
	q := h.question("/ai", "192.0.2.1")
	var plan core.Plan
	plan.Add(v.Ruleset, &wire.View{Ask: &q.Ask, Inputs: &formOf(v).inputs, At: micros(time.Now())})
	plan.Results()[0].Granted = 10
	plan.Decide()
	expired := func() string {
		var s core.Settlement
		plan.Settlement(&s)
		return h.b.sealer.seal(v.ID, &s, v.Ruleset, micros(time.Now())-receiptTTL)
	}
	for _, cost := range []string{"3", "10"} {
		if a := h.ask(settlementItem(expired(), cost))[0]; a.Status != wire.StatusInvalid {
			t.Errorf("a cost of %s: %+v", cost, a)
		}
	}
	if a := h.ask(settlementItem(expired(), "35"))[0]; a.Status != wire.StatusOK {
		t.Error(a)
	}
	h.awaitUsed(35)
}

// TestRedeemed: each number of each process is redeemed once, and expired numbers are forgotten.
// When segmentsMax segments of receipts are in use, a receipt that needs a new segment is rejected,
// and receipts of known segments can still be redeemed.
func TestRedeemed(t *testing.T) {
	var r redeemedReceipts
	of := func(p byte, n uint64) receiptID { return receiptID{process{p}, n} }
	for _, id := range []receiptID{of(1, 0), of(1, 1), of(2, 0), of(1, segmentReceipts), of(1, 1<<63)} {
		if !r.redeem(id, 100, 0) || r.redeem(id, 100, 0) {
			t.Errorf("%v", id)
		}
	}
	r = redeemedReceipts{}
	for i := range uint64(segmentsMax) {
		if !r.redeem(of(1, i*segmentReceipts), 100, 50) {
			t.Fatalf("segment %d has no room", i)
		}
	}
	if r.redeem(of(2, 0), 100, 50) || !r.redeem(of(1, 1), 100, 50) || len(r.segments) != segmentsMax {
		t.Error("the bound does not hold")
	}
	for i := range uint64(2 * segmentsMax) {
		if !r.redeem(of(3, i*segmentReceipts), 200, 100) && i < segmentsMax {
			t.Fatalf("segment %d has no room though all before are expired", i)
		}
	}
	if len(r.segments) != segmentsMax || len(r.order) != segmentsMax {
		t.Errorf("%d segments, %d in order", len(r.segments), len(r.order))
	}
}

// TestSettlementsAreCounted: settlements are counted by result. If the queue is full, the answer is
// StatusBusy.
func TestSettlementsAreCounted(t *testing.T) {
	h := open(t, shop, nil)
	receipt := h.admitted()
	h.ask(settlementItem(receipt, ""), settlementItem(receipt, "1"), settlementItem("?", "1"))
	last := h.admitted()
	h.b.settling.Stop(settle.Deadline)
	if a := h.ask(settlementItem(last, "1"))[0]; a.Status != wire.StatusBusy {
		t.Error(a)
	}
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`penstock_settlements_total{result="redeemed"} 1`,
		`penstock_settlements_total{result="invalid"} 1`,
		`penstock_settlements_total{result="dropped"} 1`,
		`penstock_unreadable_costs_total 1`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
}

// TestASettlementWithoutAPlaceCanBeRepeated: if the queue has no place for a settlement, its
// receipt is not redeemed, so the settlement that the filter sends again is made. It is made once.
func TestASettlementWithoutAPlaceCanBeRepeated(t *testing.T) {
	h := open(t, shop, nil)
	receipt := h.admitted()
	full := h.b.settling
	full.Stop(settle.Deadline)
	for range 2 {
		if a := h.ask(settlementItem(receipt, "35"))[0]; a.Status != wire.StatusBusy {
			t.Errorf("without a place: %v", a)
		}
	}
	h.b.settling = settle.New(h.b.options.Corrections, h.b.metrics.settled)
	if a := h.ask(settlementItem(receipt, "35"))[0]; a.Status != wire.StatusOK {
		t.Errorf("repeated: %v", a)
	}
	h.awaitUsed(35)
	if a := h.ask(settlementItem(receipt, "35"))[0]; a.Status != wire.StatusInvalid {
		t.Errorf("repeated after it was made: %v", a)
	}
}

// FuzzReceipt: only receipts sealed here can be opened.
func FuzzReceipt(f *testing.F) {
	h := open(f, shop, nil)
	good := h.admitted()
	f.Add(good)
	f.Add("")
	f.Add(good[:receiptHeadMin])
	f.Fuzz(func(t *testing.T, receipt string) {
		if _, err := h.b.sealer.open(receipt, receiptForm, h.b.sealer.started); err == nil && receipt != good {
			t.Fatalf("%q opens", receipt)
		}
	})
}
