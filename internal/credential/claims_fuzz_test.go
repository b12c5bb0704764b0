// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
)

// FuzzClaims: whatever an issuer signs, the resulting names are valid in keys of a store, and other
// JSON parsers read the same names.
func FuzzClaims(f *testing.F) {
	for _, one := range readSpoofs(f) {
		f.Add(one["claims"])
	}
	f.Add(`{"sub":"\ud83d\ude00\\ud800","exp":253402300799,"org":{"id":7},"limits":{"*":["1/1s","9/day"]}}`)
	j := openTest(f, JWTOptions{JWKSFile: write(f, "k.json", theIssuer.set), TenantClaim: "org.id", TierClaim: "tier",
		LimitsClaim: "limits", NoExpiry: true})
	f.Fuzz(func(t *testing.T, text string) {
		object, err := decodeObject([]byte(text), claimsValuesMax)
		if err == nil {
			var plain map[string]any
			d := json.NewDecoder(strings.NewReader(text))
			d.UseNumber()
			if err := d.Decode(&plain); err != nil || !cmp.Equal(plain, object) {
				t.Fatalf("read as %v, by encoding/json as %v (%v)", object, plain, err)
			}
		}
		id, when, state := j.judge(encode([]byte(text)), testNow.UnixMicro(), 0)
		if state != policy.CredentialValid {
			return
		}
		if id.Kind == "" || id.ID == "" || len(id.ID) > idBytesMax || when.from >= when.until {
			t.Fatalf("%+v, good from %d until %d", id, when.from, when.until)
		}
		for _, name := range []string{id.ID, id.User, id.Tenant, id.Tier} {
			if !utf8.ValidString(name) || strings.ContainsAny(name, "\r\n\x00") {
				t.Fatalf("%q", name)
			}
		}
	})
}
