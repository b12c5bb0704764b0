// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// withP384 is a policy that counts users by tokens of a key that costs much to verify with.
func withP384(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // 4, then both coordinates
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"keys":[{"kty":"EC","crv":"P-384","kid":"a","x":%q,"y":%q}]}`, text(point[1:49]),
		text(point[49:])), 0o600); err != nil {
		t.Fatal(err)
	}
	return shop + "identify: [{ jwt: { jwks_file: " + file + " } }, { ip: {} }]\n"
}

// TestACallFullOfGarbage: every question is decided, by the address. No more tokens are verified than there is time for; of the others
// nothing is remembered.
func TestACallFullOfGarbage(t *testing.T) {
	h := open(t, withP384(t), nil)
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
	lasting := 0
	for i, a := range h.ask(items...) {
		if a.Status != wire.StatusOK || len(a.Results) != 1 || a.Results[0].Refused || a.Verdict == nil || len(a.Verdict.Ways) != 1 ||
			a.Verdict.Ways[0].State != core.CredentialInvalid {
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
		if used := h.used("/api/x", items[i].Ask.Peer.String()); used != 1 {
			t.Fatalf("%d are counted for %v, want 1", used, items[i].Ask.Peer)
		}
	}
	if n := h.counted(`penstock_credentials_total{method="jwt",policy="shop",state="unchecked"}`); n != len(items)-lasting {
		t.Errorf("%d are counted as unchecked, want %d", n, len(items)-lasting)
	}
}
