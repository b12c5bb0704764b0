// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

// leased is a policy with limits that may be leased and limits that may not.
const leased = `
name: shop
lease: auto
rules:
  - { name: hot, match: { path: /hot }, limit: 1000/1h fixed_window }
  - { name: both, match: { path: /both }, limit: [1000/1h fixed_window, 500/1d fixed_window] }
  - { name: exact, match: { path: /exact }, limit: 1000/1h fixed_window, lease: off }
  - { name: refunds, match: { path: /refunds }, limit: 1000/1h fixed_window, refund_on: { status: [5xx] } }
  - { name: local, match: { path: /local }, limit: 1000/1h fixed_window, on_error: local }
`

// testBridge.wanting returns a question that asks for leased units for its first check.
func (h *testBridge) wanting(kind wire.Kind, path string, change func(*wire.Units)) wire.Item {
	item := h.question(path, "192.0.2.1")
	item.Kind = kind
	u := wire.Units{Counter: h.counter(path, 0), Cost: 1, Max: 11, ShareMille: 500, Age: 250 * counter.Millisecond}
	if kind == wire.KindFetch {
		u.Cost = 0
	}
	if change != nil {
		change(&u)
	}
	item.Units = []wire.Units{u}
	return item
}

// testBridge.counter returns the hash by which a filter identifies the counter of a check.
func (h *testBridge) counter(path string, check int) uint64 {
	var plan core.Plan
	item := h.question(path, "192.0.2.1")
	e := h.b.policy.Current()
	plan.Add(e.Ruleset, &wire.View{Ask: &item.Ask, Inputs: &formOf(e).inputs, At: micros(time.Now())})
	return wire.CounterOf(&plan.Checks()[check])
}

func returnItem(token string, units int64) wire.Item {
	return wire.Item{Kind: wire.KindRefund, Refund: wire.Refund{Token: token, Units: units}}
}

// testBridge.back waits until exactly the given number of units under the limit of /hot is in use,
// because the others were refunded.
func (h *testBridge) back(want int64) {
	h.t.Helper()
	eventually.Until(h.t, 10*time.Second, "units are back", func() bool { return h.readUsed("/hot", "192.0.2.1") == want })
}

// TestUnitsInAdvance: units are leased with a request, without a request, and for waiting requests.
// Each leased unit is refunded once.
func TestUnitsInAdvance(t *testing.T) {
	h := open(t, leased, nil)
	a := h.ask(h.wanting(wire.KindLease, "/hot", nil), h.wanting(wire.KindFetch, "/hot", nil), h.question("/hot", "192.0.2.1"))
	for i, want := range []int64{11, 11} {
		if len(a[i].Leases) != 1 || a[i].Leases[0].Granted != want || a[i].Leases[0].Token == "" || a[i].Leases[0].Receipt == 0 {
			t.Fatalf("answer %d: %+v", i, a[i])
		}
	}
	if a[0].Results[0].Granted != 1 || a[1].Results[0].Granted != 11 || len(a[2].Leases) != 0 || h.readUsed("/hot", "192.0.2.1") != 23 {
		t.Fatalf("%+v", a)
	}
	more := h.ask(h.wanting(wire.KindLease, "/hot", func(u *wire.Units) { u.Cost, u.Max, u.Age = 5, 5, 0 }))[0]
	if more.Results[0].Granted != 1 || more.Leases[0].Granted != 5 || h.readUsed("/hot", "192.0.2.1") != 28 {
		t.Fatalf("for those who wait: %+v", more)
	}
	first, second := a[0].Leases[0].Token, a[1].Leases[0].Token
	for _, refused := range []wire.Item{returnItem(first, 11), returnItem(first, 0), returnItem(first, -1), returnItem("", 1),
		returnItem(first[:20], 1), returnItem(h.admittedReceipt(), 1), settlementItem(first, "0")} {
		if got := h.ask(refused)[0]; got.Status != wire.StatusInvalid {
			t.Errorf("%+v: %+v", refused, got)
		}
	}
	if got := h.ask(returnItem(first, 10), returnItem(second, 4)); got[0].Status != wire.StatusOK || got[1].Status != wire.StatusOK {
		t.Fatal(got)
	}
	h.back(28 - 14)
	for _, again := range []wire.Item{returnItem(first, 1), returnItem(second, 1)} {
		if got := h.ask(again)[0]; got.Status != wire.StatusInvalid {
			t.Errorf("given back twice: %+v", got)
		}
	}
	h.ask(returnItem(more.Leases[0].Token, 4))
	h.back(10)
}

// admittedReceipt returns a receipt for the settlement of a response.
func (h *testBridge) admittedReceipt() string {
	h.t.Helper()
	return h.ask(h.question("/refunds", "192.0.2.1"))[0].Receipt
}

// TestWantsAreBounded: a lease is bounded by a node's share and by the lease's time, and only
// limits that may be leased have a lease.
func TestWantsAreBounded(t *testing.T) {
	h := open(t, leased, nil)
	for name, change := range map[string]func(*wire.Units){
		"more than a share":   func(u *wire.Units) { u.Max = 52 },
		"less than its cost":  func(u *wire.Units) { u.Cost = 0 },
		"more than there is":  func(u *wire.Units) { u.Cost, u.Max = 1001, 1001 },
		"backwards":           func(u *wire.Units) { u.Max = 0 },
		"a negative share":    func(u *wire.Units) { u.ShareMille = -1 },
		"more than all":       func(u *wire.Units) { u.ShareMille = 1001 },
		"for an hour":         func(u *wire.Units) { u.Age = counter.Hour },
		"for less than now":   func(u *wire.Units) { u.Age = -1 },
		"not as a lease":      func(u *wire.Units) { u.Age = 0 },
		"of a check before 0": func(u *wire.Units) { u.Check = -1 },
	} {
		if a := h.ask(h.wanting(wire.KindLease, "/hot", change))[0]; a.Status != wire.StatusInvalid || len(a.Leases) != 0 {
			t.Errorf("%s: %+v", name, a)
		}
	}
	twice := h.wanting(wire.KindLease, "/hot", nil)
	twice.Units = append(twice.Units, twice.Units[0])
	none, nothing := h.wanting(wire.KindFetch, "/hot", nil), h.wanting(wire.KindFetch, "/hot", func(u *wire.Units) { u.Max = 0 })
	none.Units = nil
	for _, item := range []wire.Item{twice, none, nothing} {
		if a := h.ask(item)[0]; a.Status != wire.StatusInvalid {
			t.Errorf("%+v: %+v", item, a)
		}
	}
	if n := h.readUsed("/hot", "192.0.2.1"); n != 0 {
		t.Errorf("%d units are charged by what was refused", n)
	}
}

// TestUnleasedLimitsChargeTheCostOnly: the request's own cost is charged, and nothing is leased.
func TestUnleasedLimitsChargeTheCostOnly(t *testing.T) {
	h := open(t, leased, nil)
	other := func(u *wire.Units) { u.Counter++ }
	for path, change := range map[string]func(*wire.Units){"/exact": nil, "/refunds": nil, "/hot": other,
		"/both": func(u *wire.Units) { u.Check = 2 }} {
		a := h.ask(h.wanting(wire.KindLease, path, change), h.wanting(wire.KindFetch, path, change))
		if a[0].Status != wire.StatusOK || a[0].Results[0].Granted != 1 || len(a[0].Leases) != 0 || h.readUsed(path, "192.0.2.1") != 1 {
			t.Errorf("%s: %+v", path, a[0])
		}
		if a[1].Status != wire.StatusUnknown || len(a[1].Leases) != 0 {
			t.Errorf("%s in advance: %+v", path, a[1])
		}
	}
}

// TestOfSeveralLimits: units are leased from one of two limits, and from both. If one denies,
// nothing is granted.
func TestOfSeveralLimits(t *testing.T) {
	h := open(t, leased, nil)
	item := h.wanting(wire.KindLease, "/both", nil)
	item.Units = append(item.Units, wire.Units{Check: 1, Counter: h.counter("/both", 1), Cost: 3, Max: 13, ShareMille: 1000,
		Age: counter.Millisecond})
	a := h.ask(item)[0]
	if len(a.Leases) != 2 || a.Leases[0].Granted != 11 || a.Leases[1].Granted != 13 || a.Results[1].Granted != 1 {
		t.Fatalf("%+v", a)
	}
	item.Units = item.Units[1:]
	if a = h.ask(item)[0]; len(a.Leases) != 1 || a.Leases[0].Check != 1 || a.Results[0].Granted != 1 {
		t.Fatalf("%+v", a)
	}
	for a.Status == wire.StatusOK && !a.Results[1].Denied {
		a = h.ask(item)[0]
	}
	if len(a.Leases) != 0 || a.Results[0].Granted != 0 || a.Results[1].Remaining != 0 {
		t.Errorf("refused: %+v", a)
	}
}

// TestNothingIsGrantedWithoutTheStore: if the store fails, nothing is leased, and on_error admits
// only the request itself.
func TestNothingIsGrantedWithoutTheStore(t *testing.T) {
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := open(t, leased, func(o *Options) {
		o.Corrections, o.Store = o.Store, fallback.New(o.Store, fallback.Options{Counts: fallback.NewCounts(memory)})
	})
	h.store.fails = counter.ErrUnavailable
	a := h.ask(h.wanting(wire.KindLease, "/hot", nil), h.wanting(wire.KindFetch, "/hot", nil), h.wanting(wire.KindLease, "/local", nil),
		h.wanting(wire.KindFetch, "/local", nil))
	for i, want := range []wire.Status{wire.StatusOK, wire.StatusUnavailable, wire.StatusOK, wire.StatusUnavailable} {
		if a[i].Status != want || len(a[i].Leases) != 0 {
			t.Errorf("answer %d: %+v", i, a[i])
		}
	}
	for _, of := range []wire.Answer{a[0], a[2]} {
		if !of.Results[0].Local || of.Results[0].Denied {
			t.Errorf("%+v", of)
		}
	}
	item := h.question("/local", "192.0.2.1")
	if got := h.readUsedIn(memory, "/local", "192.0.2.1"); got != 1 {
		t.Errorf("%d of the share of %s are used", got, item.Ask.Path)
	}
}

// TestOldCallersAreAnsweredAsBefore: a call in the first version of the protocol gets a reply in
// that version. The reply announces the newer version.
func TestOldCallersAreAnsweredAsBefore(t *testing.T) {
	h := open(t, leased, nil)
	w := h.post(h.call(h.question("/hot", "192.0.2.1")), wire.ContentType)
	if body := w.Body.Bytes(); len(body) < 3 || body[2] != 1 || w.Header().Get(wire.LeasingHeader) != wire.LeasingUsual {
		t.Errorf("%q %v", body, w.Header())
	}
	forgetful := open(t, leased, func(o *Options) { o.Forgetful = true })
	w = forgetful.post(forgetful.call(forgetful.question("/hot", "192.0.2.1")), wire.ContentType)
	if got := w.Header().Get(wire.LeasingHeader); got != wire.LeasingExact {
		t.Errorf("%q of a bridge that is to be asked each time", got)
	}
	w = h.post(h.call(h.wanting(wire.KindLease, "/hot", nil)), wire.ContentType)
	if body := w.Body.Bytes(); len(body) < 3 || body[2] != 2 {
		t.Errorf("%q", body)
	}
	unmarked := h.call(h.wanting(wire.KindLease, "/hot", nil))
	unmarked[2] = 1
	if w := h.post(unmarked, wire.ContentType); w.Code != http.StatusBadRequest {
		t.Errorf("status %d for units in a call of the first version", w.Code)
	}
}

// TestAnyBridgeRedeemsReceipts: bridges with a common token and store redeem each other's receipts.
// Each receipt is redeemed once.
func TestAnyBridgeRedeemsReceipts(t *testing.T) {
	shared := func(o *Options) { o.Token, o.Shared = "secret", true }
	first, second := open(t, leased, shared), open(t, leased, shared)
	second.b.enforcer, second.store = first.b.enforcer, first.store
	second.b.settling = first.b.settling
	a := first.askWithToken(first.wanting(wire.KindLease, "/hot", nil))[0]
	for _, h := range []*testBridge{second, first, second} {
		h.askWithToken(returnItem(a.Leases[0].Token, 6))
	}
	ended := func() int {
		return first.counted(`penstock_settlements_total{result="settled"}`) + first.counted(`penstock_settlements_total{result="redeemed"}`)
	}
	eventually.Until(t, 10*time.Second, "both are ended", func() bool { return ended() == 2 })
	if used := first.readUsed("/hot", "192.0.2.1"); used != 5 {
		t.Errorf("%d used, want 5: eleven were taken and six are back, once", used)
	}
}

// TestLeasedUnitsAreCounted: at most as many units are refunded as were granted.
func TestLeasedUnitsAreCounted(t *testing.T) {
	h := open(t, leased, nil)
	a := h.ask(h.wanting(wire.KindLease, "/hot", nil))[0]
	h.ask(returnItem(a.Leases[0].Token, 3))
	if got := []int{h.counted("penstock_bridge_leased_units_total"), h.counted("penstock_bridge_returned_units_total")}; !slices.Equal(got, []int{10, 3}) {
		t.Errorf("%v", got)
	}
	h.back(8)
}

// TestSharedCountersLeaseNothing: if the store is full, a client's units are charged to a shared
// counter. Such units are not refunded to the client's own counter.
func TestSharedCountersLeaseNothing(t *testing.T) {
	h := open(t, leased, func(o *Options) {
		memory, err := memstore.New(memstore.Options{CountersMax: 1})
		if err != nil {
			t.Fatal(err)
		}
		o.Store = memory
	})
	h.ask(h.question("/both", "192.0.2.9"))
	a := h.ask(h.wanting(wire.KindLease, "/hot", nil), h.wanting(wire.KindFetch, "/hot", nil))
	for i := range a {
		if a[i].Status != wire.StatusOK || !a[i].Results[0].Overflow || len(a[i].Leases) != 0 {
			t.Errorf("%+v", a[i])
		}
	}
	if a[0].Results[0].Granted != 1 {
		t.Errorf("%+v", a[0])
	}
}
