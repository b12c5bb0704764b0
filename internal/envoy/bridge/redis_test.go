// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// openRedis returns a store that has reached the server, with the longest deadline.
func openRedis(t *testing.T, server *redistest.Server) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // never fails
	eventually.Until(t, 10*time.Second, "redis answers", func() bool { return store.Check(t.Context()) == nil })
	return store
}

// TestACallIsOnePipeline: 64 questions of 64 clients go to Redis in one pipeline, after the store
// has learned that Redis answers such pipelines in time.
func TestACallIsOnePipeline(t *testing.T) {
	server := redistest.Start(t)
	store := openRedis(t, server)
	h := open(t, shop, func(o *Options) { o.Store, o.Shared = store, true })
	h.ask(h.question("/api/x", "192.0.2.200"))
	var items []wire.Item
	for i := range 64 {
		items = append(items, h.question([]string{"/api/x", "/slow"}[i%2], "192.0.2."+string('1'+byte(i/32))+string('0'+byte(i%10))))
	}
	var got uint64
	var calls int64
	for try := 0; try < 20 && got != 1; try++ {
		pipelines, asked := store.Stats().Batches, server.Calls("evalsha")
		for i, a := range h.ask(items...) {
			if a.Status != wire.StatusOK {
				t.Errorf("question %d: status %d", i, a.Status)
			}
		}
		got, calls = store.Stats().Batches-pipelines, server.Calls("evalsha")-asked
	}
	if got != 1 || calls != 64 {
		t.Errorf("%d pipelines of %d calls, want 1 of 64", got, calls)
	}
}

// TestAReceiptIsRedeemedOnceAtAll: bridges with a common token and Redis open each other's
// receipts. Reserved units are refunded once, whichever bridge gets the receipt, and however often.
func TestAReceiptIsRedeemedOnceAtAll(t *testing.T) {
	server := redistest.Start(t)
	var bridges [2]*testBridge
	for i := range bridges {
		store := openRedis(t, server)
		bridges[i] = open(t, shop, func(o *Options) { o.Store, o.Shared, o.Token = store, true, "0123456789abcdef" })
	}
	first, second := bridges[0], bridges[1]
	used := func() int64 { return first.readUsedIn(first.b.options.Store, "/ai", "192.0.2.1") }
	const receipts = 5
	var given [receipts]string
	for i := range given {
		given[i] = first.askWithToken(first.question("/ai", "192.0.2.1"))[0].Receipt
	}
	if got := used(); got != 10*receipts {
		t.Fatalf("%d reserved", got)
	}
	for i, receipt := range given {
		at := [2]*testBridge{first, second}
		if i%2 == 1 {
			at = [2]*testBridge{second, first}
		}
		if a := at[0].askWithToken(settlementItem(receipt, "9"))[0]; a.Status != wire.StatusOK {
			t.Errorf("receipt %d: %+v", i, a)
		}
		at[1].askWithToken(settlementItem(receipt, "3"), settlementItem(receipt, "3"))
		at[0].askWithToken(settlementItem(receipt, "3"))
	}
	ends := func(result string) (n int) {
		for _, h := range bridges {
			n += h.counted(`penstock_settlements_total{result="` + result + `"}`)
		}
		return n
	}
	eventually.Until(t, 10*time.Second, "all are settled", func() bool { return ends("settled")+ends("redeemed") == 4*receipts })
	if got := used(); ends("settled") != receipts || got > 9*receipts || got < 3*receipts {
		t.Errorf("%d are settled, %d are used, want %d and %d at most", ends("settled"), got, receipts, 9*receipts)
	}
	// A receipt with an expiry far ahead could be redeemed again after the bridges have forgotten
	// it.
	o, err := first.b.sealer.open(given[0], receiptForm, micros(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.b.sealer.open(given[0], receiptForm, o.expires-receiptTTL-clocksApart-1); err != errExpired {
		t.Errorf("%v", err)
	}
}
