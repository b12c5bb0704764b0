// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// spoof is one case of testdata/spoof.txt.
type spoof map[string]string

func readSpoofs(t testing.TB) (cases []spoof) {
	t.Helper()
	text, err := os.ReadFile("testdata/spoof.txt")
	if err != nil {
		t.Fatal(err)
	}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		one := spoof{}
		for line := range strings.Lines(paragraph) {
			word, value, ok := strings.Cut(strings.TrimRight(line, "\n"), " ")
			if ok && word != "#" {
				one[word] = strings.TrimLeft(value, " ")
			}
		}
		if one["attack"] != "" {
			cases = append(cases, one)
		}
	}
	return cases
}

// spoof.token builds the case's token.
func (s spoof) token(t testing.TB) string {
	t.Helper()
	header := strings.ReplaceAll(s["header"], "@JWK", rsaJWK("a1", &theIssuer.other.PublicKey))
	header = strings.ReplaceAll(header, "@MANY", strings.Repeat("0,", headerValuesMax-2))
	claims := strings.ReplaceAll(s["claims"], "@PAD", strings.Repeat("x", 9000))
	token := theIssuer.token(t, header, claims, s["sign"])
	parts := strings.Split(token, ".")
	switch s["edit"] {
	case "":
	case "payload":
		claims = strings.Replace(claims, `"u"`, `"admin"`, 1)
		return parts[0] + "." + encode([]byte(claims)) + "." + parts[2]
	case "unsigned":
		return parts[0] + "." + parts[1] + "."
	case "two":
		return parts[0] + "." + parts[1]
	case "short":
		return token[:len(token)-6] + "AA" // a signature of 253 bytes leaves unused bits
	case "four":
		return token + ".x"
	case "five":
		return token + ".x.x"
	case "padded":
		return token + "=="
	case "bits":
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		last := strings.IndexByte(alphabet, token[len(token)-1])
		// a signature of 256 bytes leaves four unused bits, which are zero
		return token[:len(token)-1] + alphabet[last|1:last|1+1]
	case "alphabet":
		return base64.RawStdEncoding.EncodeToString([]byte(header)) + "." + parts[1] + "." + parts[2]
	case "newline":
		return token[:5] + "\n" + token[5:]
	case "space":
		return " " + token
	default:
		t.Fatalf("unknown edit %q", s["edit"])
	}
	return token
}

func TestSpoofedTokens(t *testing.T) {
	cases := readSpoofs(t)
	if len(cases) < 40 {
		t.Fatalf("the corpus has only %d cases", len(cases))
	}
	options := JWTOptions{Issuer: "https://id.example", Audience: []string{"shop"}, TierClaim: "tier", LimitsClaim: "limits"}
	bySet, bySecret := options, options
	bySet.JWKSFile, bySecret.Secret = write(t, "keys.json", theIssuer.set), testSecret
	verifiers := map[string]*JWT{"": openTest(t, bySet), "set": openTest(t, bySet), "secret": openTest(t, bySecret)}
	for _, one := range cases {
		token, j := one.token(t), verifiers[one["with"]]
		// the second time the verdict might be remembered
		for _, when := range []string{"at first", "again"} {
			id, state := j.Verify(token)
			if state.String() != one["state"] {
				t.Errorf("%s: %s, %s: want %s", one["attack"], state, when, one["state"])
			}
			if (id != nil) != (state == policy.CredentialValid) {
				t.Errorf("%s: %s comes with the identity %v", one["attack"], state, id)
			}
		}
	}
}
