// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/test/signer"
)

// withP384 returns a policy that counts users by tokens whose signatures are slow to verify.
func withP384(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"keys":[%s]}`, signer.EC(t, "a", elliptic.P384()).JWK), 0o600); err != nil {
		t.Fatal(err)
	}
	return shop + "identify: [{ jwt: { jwks_file: " + file + " } }, { ip: {} }]\n"
}

// TestACallFullOfGarbage: every question is decided by its address. Tokens are verified until the
// time is used up. The verdicts on the remaining tokens are not remembered.
func TestACallFullOfGarbage(t *testing.T) {
	h := open(t, withP384(t), nil)
	items := h.garbageItems()
	lasting := 0
	for i, a := range h.ask(items...) {
		if a.Status != wire.StatusOK || len(a.Results) != 1 || a.Results[0].Denied || a.Verdict == nil || len(a.Verdict.Ways) != 1 ||
			a.Verdict.Ways[0].State != policy.CredentialInvalid {
			t.Fatalf("question %d: %+v", i, a)
		}
		if a.Verdict.TTLMicros != 0 {
			lasting++
		}
	}
	t.Logf("%d of %d tokens were verified", lasting, len(items))
	if lasting > len(items)/2 {
		t.Errorf("%d of %d tokens were verified in one call", lasting, len(items))
	}
	for i := range items {
		if used := h.readUsed("/api/x", items[i].Ask.Peer.String()); used != 1 {
			t.Fatalf("%d are counted for %v, want 1", used, items[i].Ask.Peer)
		}
	}
	if n := h.counted(`penstock_credentials_total{method="jwt",policy="shop",state="unchecked"}`); n != len(items)-lasting {
		t.Errorf("%d are counted as unchecked, want %d", n, len(items)-lasting)
	}
}

// testBridge.garbageItems returns questions with tokens that no key has signed, each from its own
// address.
func (h *testBridge) garbageItems() []wire.Item {
	text := base64.RawURLEncoding.EncodeToString
	items := make([]wire.Item, wire.ItemsMax)
	for i := range items {
		signature := make([]byte, 96)
		_, _ = rand.Read(signature)
		signature[0] &= 0x7f
		items[i] = h.question("/api/x", netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String())
		items[i].Ask.Headers[0] = wire.Value{Given: true, Text: "Bearer " + text([]byte(`{"alg":"ES384","kid":"a"}`)) + "." +
			text([]byte(`{"sub":"u","exp":9999999999}`)) + "." + text(signature)}
	}
	return items
}

// TestGarbageWhereUsersMatter: a question whose token was not verified for lack of time is not
// decided as a question without a token. The filter denies it.
func TestGarbageWhereUsersMatter(t *testing.T) {
	h := open(t, withP384(t)+"block: [{ user: mallory }]\n", nil)
	items := h.garbageItems()
	busy := 0
	for i, a := range h.ask(items...) {
		used := h.readUsed("/api/x", items[i].Ask.Peer.String())
		if a.Status == wire.StatusBusy {
			busy++
		} else if a.Status != wire.StatusOK || used != 1 {
			t.Fatalf("question %d: %+v, %d are counted", i, a, used)
		}
		if a.Status == wire.StatusBusy && used != 0 {
			t.Fatalf("question %d is denied, and counted", i)
		}
	}
	if busy < len(items)/2 {
		t.Errorf("%d of %d questions are denied", busy, len(items))
	}
}
