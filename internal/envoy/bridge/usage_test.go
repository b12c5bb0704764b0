// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// metered returns a meter that counts.
func metered(t *testing.T) *meter.Meter {
	m := meter.New()
	t.Cleanup(m.Use())
	return m
}

// addUsage adds what a meter has counted to the sums by client and rule.
func addUsage(sums map[string]meter.Sum, m *meter.Meter) {
	for _, row := range m.Take() {
		name := row.Kind + ":" + row.Client + " " + row.Rule + " " + row.Tier
		sum := sums[name]
		sum.Admitted, sum.Denied, sum.Units = sum.Admitted+row.Admitted, sum.Denied+row.Denied, sum.Units+row.Units
		sums[name] = sum
	}
}

// checkUsage waits until a meter has counted the wanted sums.
func checkUsage(t *testing.T, m *meter.Meter, want map[string]meter.Sum) {
	t.Helper()
	got := map[string]meter.Sum{}
	deadline := time.After(10 * time.Second)
	for {
		addUsage(got, m)
		if cmp.Equal(got, want) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("usage (-want +got):\n%s", cmp.Diff(want, got))
		case <-t.Context().Done():
			return
		default:
		}
	}
}

// TestCorrectionsAreUsage: what a response costs is in the usage of its client, once for each
// receipt. A receipt of an earlier release names no client, and corrects the row without a client.
func TestCorrectionsAreUsage(t *testing.T) {
	m := metered(t)
	h := open(t, shop, func(o *Options) { o.Meter = m })
	less, more, lost := h.admitted(), h.admitted(), h.admitted()
	_ = lost // its settlement never arrives, so the reserved units stay
	h.ask(settlementItem(less, "3"))
	h.ask(settlementItem(more, "35"))
	h.awaitUsed(48)
	for range 2 {
		h.ask(settlementItem(less, "3"), settlementItem(more, "50"))
	}
	checkUsage(t, m, map[string]meter.Sum{"ip:192.0.2.1 ai ": {Admitted: 3, Units: 48}})

	h.b.namesClients.Store(false)
	unnamed := h.admitted()
	if unnamed[0] != receiptForm || less[0] != namedForm {
		t.Errorf("the receipts have the forms %d and %d", unnamed[0], less[0])
	}
	h.b.namesClients.Store(true)
	h.ask(settlementItem(unnamed, "4"))
	h.awaitUsed(52)
	checkUsage(t, m, map[string]meter.Sum{"ip:192.0.2.1 ai ": {Admitted: 1, Units: 10}, ": ai ": {Units: -6}})
}

// TestFailedCorrectionsAreNoUsage: if the store does not make a correction, the usage keeps the
// reserved units, as the counter does. An expired receipt refunds nothing, but charges more.
func TestFailedCorrectionsAreNoUsage(t *testing.T) {
	m := metered(t)
	h := open(t, shop, func(o *Options) { o.Meter = m })
	receipt := h.admitted()
	h.store.fails = counter.ErrUnavailable
	h.ask(settlementItem(receipt, "3"))
	eventually.Until(t, 10*time.Second, "it has failed", func() bool { return h.counted(`penstock_settlements_total{result="failed"}`) == 1 })
	h.store.fails = nil
	h.ask(settlementItem(receipt, "3"))
	checkUsage(t, m, map[string]meter.Sum{"ip:192.0.2.1 ai ": {Admitted: 1, Units: 10}})
	less, more := h.admitted(), h.admitted()
	h.b.sealer.started += receiptTTL * 2 // both were issued by an earlier process
	h.ask(settlementItem(less, "3"), settlementItem(more, "35"))
	checkUsage(t, m, map[string]meter.Sum{"ip:192.0.2.1 ai ": {Admitted: 2, Units: 45}})
}

// TestACorrectionIsUsageOnceAtAll: of two bridges with a common Redis, only one counts a refund,
// however often and wherever its receipt arrives.
func TestACorrectionIsUsageOnceAtAll(t *testing.T) {
	server, m := redistest.Start(t), metered(t)
	var bridges [2]*testBridge
	for i := range bridges {
		store := openRedis(t, server)
		bridges[i] = open(t, shop, func(o *Options) { o.Store, o.Shared, o.Token, o.Meter = store, true, "0123456789abcdef", m })
	}
	const receipts = 5
	for i := range receipts {
		receipt := bridges[0].askWithToken(bridges[0].question("/ai", "192.0.2.1"))[0].Receipt
		for try := range 4 {
			bridges[(i+try)%2].askWithToken(settlementItem(receipt, "3"))
		}
	}
	for _, h := range bridges {
		if err := h.b.Close(); err != nil {
			t.Error(err)
		}
	}
	checkUsage(t, m, map[string]meter.Sum{"ip:192.0.2.1 ai ": {Admitted: receipts, Units: 3 * receipts}})
}

// TestReceiptsNameClientsOnceAllReadThem: while a bridge of an earlier release counts in the same
// store, receipts have the form that it reads.
func TestReceiptsNameClientsOnceAllReadThem(t *testing.T) {
	const now = 1_800_000_000_000_000
	node := func(front string, receipts int, seenAgo time.Duration) *fleet.Record {
		return &fleet.Record{Front: front, Receipts: receipts, SeenMicros: now - seenAgo.Microseconds()}
	}
	for name, c := range map[string]struct {
		records    []*fleet.Record
		unreadable int
		want       bool
	}{
		"none":                   {nil, 0, true},
		"this release":           {[]*fleet.Record{node("bridge", namedForm, 0), node("caddy", 0, 0)}, 0, true},
		"a later release":        {[]*fleet.Record{node("bridge", namedForm+1, 0)}, 0, true},
		"an earlier one":         {[]*fleet.Record{node("bridge", namedForm, 0), node("bridge", 0, time.Second)}, 0, false},
		"an earlier one is gone": {[]*fleet.Record{node("bridge", 0, fleet.SilentAfter)}, 0, true},
		"a record is unreadable": {nil, 1, false},
	} {
		if got := allReadClients(&fleet.Reading{Records: c.records, NowMicros: now, Unreadable: c.unreadable}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	others := make(chan *fleet.Reading)
	server, m := redistest.Start(t), metered(t)
	store := openRedis(t, server)
	h := open(t, shop, func(o *Options) {
		o.Store, o.Shared, o.Token, o.Meter = store, true, "0123456789abcdef", m
		o.Others = func(ctx context.Context) (*fleet.Reading, error) {
			select {
			case r := <-others:
				return r, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	form := func() byte { return h.askWithToken(h.question("/ai", "192.0.2.1"))[0].Receipt[0] }
	if got := form(); got != receiptForm {
		t.Errorf("before the nodes are known, a receipt has the form %d", got)
	}
	others <- &fleet.Reading{Records: []*fleet.Record{h.b.node.Record(time.Now())}}
	eventually.Until(t, 10*time.Second, "receipts name the client", func() bool { return form() == namedForm })
}

// TestAdmissionsOfFilters: a bridge that counts usage asks its filters for the requests that they
// admit themselves, and counts these by client, rule and tier, without charging them.
func TestAdmissionsOfFilters(t *testing.T) {
	const policy = shop + "  - { name: both, match: { path: /api/* }, limit: 900/1h, cost: 2 }\nexempt: { ip: 192.0.2.99 }\n"
	m := metered(t)
	h := open(t, policy, func(o *Options) { o.Meter = m })
	if w := h.post(h.call(h.question("/other", "192.0.2.1")), wire.ContentType); w.Header().Get(wire.DenialsHeader) != wire.WantsUsage {
		t.Errorf("the header is %q", w.Header().Get(wire.DenialsHeader))
	}
	report := func(path, peer string, cost int64) wire.Item {
		item := h.question(path, peer)
		item.Kind, item.Units = wire.KindDenied, []wire.Units{{Check: -1, Cost: cost}}
		return item
	}
	want := []wire.Status{wire.StatusOK, wire.StatusOK, wire.StatusOK, wire.StatusInvalid, wire.StatusInvalid}
	for i, a := range h.ask(report("/api/x", "192.0.2.1", -7), report("/api/y", "192.0.2.2", -1), report("/api/x", "192.0.2.99", -4),
		report("/api/x", "192.0.2.1", 0), report("/api/x", "192.0.2.1", -admissionsMax-1)) {
		if a.Status != want[i] || len(a.Results) > 0 {
			t.Errorf("item %d: status %d, %d results, want %d", i, a.Status, len(a.Results), want[i])
		}
	}
	checkUsage(t, m, map[string]meter.Sum{
		"ip:192.0.2.1 api ": {Admitted: 7, Units: 7}, "ip:192.0.2.1 both ": {Admitted: 7, Units: 14},
		"ip:192.0.2.2 api ": {Admitted: 1, Units: 1}, "ip:192.0.2.2 both ": {Admitted: 1, Units: 2},
		"ip:192.0.2.99 api ": {Admitted: 4, Units: 4}, "ip:192.0.2.99 both ": {Admitted: 4, Units: 8}, // the same as for an exempt client in Caddy
	})
	if used := h.readUsed("/api/x", "192.0.2.1"); used != 0 {
		t.Errorf("reports have charged %d units", used)
	}
}
