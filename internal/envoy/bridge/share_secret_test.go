// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestBridgesShareTheirSecret: bridges over one Redis without a token redeem each other's receipts.
func TestBridgesShareTheirSecret(t *testing.T) {
	server := redistest.Start(t)
	var bridges [2]*testBridge
	for i := range bridges {
		store := openRedis(t, server)
		bridges[i] = open(t, shop, func(o *Options) {
			o.Store, o.Shared, o.ShareSecret = store, true, store.SharedSecret
		})
	}
	first, second := bridges[0], bridges[1]
	eventually.Until(t, 10*time.Second, "the secret is shared", func() bool {
		return first.b.sealer.secret() == second.b.sealer.secret()
	})
	receipt := first.askWithToken(first.question("/ai", "192.0.2.1"))[0].Receipt
	// second redeems the receipt before first gets it
	for _, h := range []*testBridge{second, first} {
		if a := h.askWithToken(settlementItem(receipt, "3"))[0]; a.Status != wire.StatusOK {
			t.Fatalf("a receipt of the first bridge: %+v", a)
		}
	}
	eventually.Until(t, 10*time.Second, "both are settled", func() bool {
		ends := func(result string) int {
			series := `penstock_settlements_total{result="` + result + `"}`
			return first.counted(series) + second.counted(series)
		}
		return ends("settled") == 1 && ends("redeemed") == 1 // one bridge redeems the receipt, and the other learns that it was redeemed
	})
	if used := first.readUsedIn(first.b.options.Store, "/ai", "192.0.2.1"); used != 3 {
		t.Errorf("%d are used, want 3", used)
	}
}

// TestSharingASecret: while the store does not answer, a bridge seals with its own secret and asks
// again. The bridge notices that the secret was replaced, and receipts sealed with the previous
// secret stay valid until they expire.
func TestSharingASecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := policyfile.Decode("shop", policyfile.YAML, []byte(shop))
		if err != nil {
			t.Fatal(err)
		}
		var held atomic.Pointer[string] // the store's secret; nil means that the store does not answer
		log := &eventually.Journal{}
		share := func(_ context.Context, proposal string) (string, error) {
			switch secret := held.Load(); {
			case secret == nil:
				return "", errors.New("away")
			case *secret == "":
				held.CompareAndSwap(secret, &proposal) // this works like SET NX; both bridges read the outcome
				return *held.Load(), nil
			default:
				return *secret, nil
			}
		}
		options := func(o *Options) {
			o.PolicyFile, o.Policy, o.Shared, o.ShareSecret, o.Logger = "", d, true, share, log.Logger()
		}
		first, second := open(t, shop, options), open(t, shop, options)
		redeems := func(what string, receipt string, h *testBridge, want wire.Status) {
			t.Helper()
			if a := h.askWithToken(settlementItem(receipt, "3"))[0]; a.Status != want {
				t.Errorf("%s: status %d, want %d", what, a.Status, want)
			}
		}
		given := func(h *testBridge) string { return h.askWithToken(h.question("/ai", "192.0.2.1"))[0].Receipt }
		put := func(secret string) {
			held.Store(&secret)
			time.Sleep(secretEvery + 2*secretRetry)
		}
		time.Sleep(10 * secretRetry)
		redeems("another's while the store is away", given(first), second, wire.StatusInvalid)
		redeems("its own while the store is away", given(first), first, wire.StatusOK)
		old := map[*testBridge][]string{first: {given(first), given(first)}, second: {given(second), given(second)}}
		own := first.b.sealer.secret()
		if strings.Count(log.String(), "cannot be shared") != 2 {
			t.Errorf("it is not logged once by each:\n%s", log)
		}
		put("")
		loser := first // the bridge whose own secret was not adopted
		if *held.Load() == own {
			loser = second
		}
		redeems("another's", given(first), second, wire.StatusOK)
		redeems("its own from before", old[loser][0], loser, wire.StatusOK)
		replaced := given(first)
		put(strings.Repeat("a", 64))
		redeems("another's after a replacement", given(second), first, wire.StatusOK)
		redeems("another's from before a replacement", replaced, second, wire.StatusOK)
		redeems("its own from two replacements ago", old[loser][1], loser, wire.StatusInvalid)
		if secret := second.b.sealer.secret(); strings.Contains(log.String(), secret) || secret != strings.Repeat("a", 64) {
			t.Errorf("the secret is %q, and the log:\n%s", secret, log)
		}
	})
}

// TestATokenIsTheSecret: a bridge with a token asks for no secret.
func TestATokenIsTheSecret(t *testing.T) {
	h := open(t, shop, func(o *Options) {
		o.Token, o.Shared = "0123456789abcdef", true
		o.ShareSecret = func(context.Context, string) (string, error) {
			t.Error("the store is asked for a secret")
			return "", nil
		}
	})
	if secret := h.b.sealer.secret(); secret != "0123456789abcdef" || !h.b.receiptsRoam {
		t.Errorf("the secret is %q; other bridges redeem: %v", secret, h.b.receiptsRoam)
	}
}
