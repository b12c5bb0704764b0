// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// credentialCase is a parsed case of credential.txt.
type credentialCase struct {
	place   policy.CredentialSource
	request client
	found   string
}

func newCredentialCase(t testing.TB, c spoofCase) credentialCase {
	t.Helper()
	kinds := map[string]policy.CredentialPlace{"bearer": policy.FromBearer, "header": policy.FromHeader, "query": policy.FromQuery, "cookie": policy.FromCookie}
	out := credentialCase{request: client{header: map[string]string{}}}
	padding, values := "", 0
	// Padding is added after a token or key, and before a list.
	padded := func(value string) string {
		values++
		if out.place.Kind == policy.FromBearer || out.place.Kind == policy.FromHeader || strings.HasSuffix(value, "=") {
			return value + padding
		}
		return padding + value
	}
	for _, w := range c.words {
		switch word, value := w[0], w[1]; word {
		case "place":
			kind, name, _ := strings.Cut(value, " ")
			place, ok := kinds[kind]
			if !ok {
				t.Fatalf("%s: place %q", c.name, kind)
			}
			out.place = identify.NewCarriers(policy.Identify{From: []policy.CredentialSource{{Kind: place, Name: name}}})[0]
		case "pad":
			n, text, _ := strings.Cut(value, " ")
			padding = strings.Repeat(text, atoi(t, n))
		case "header":
			name, text, _ := strings.Cut(value, " ")
			if unquoted, err := strconv.Unquote(text); err == nil {
				text = unquoted
			}
			out.request.header[name] = padded(text)
		case "query":
			out.request.query = padded(value)
		case "found":
			out.found = value
		default:
			t.Fatalf("%s: unknown word %q", c.name, word)
		}
	}
	return out
}

func (c *credentialCase) look(p *Plan) string {
	p.text = p.text[:0]
	p.who.Request.Attrs = &c.request
	text, state := p.who.Credential(&c.place)
	if state != policy.CredentialValid {
		return state.String()
	}
	return text
}

// TestCredentialSpoofs: a credential is found exactly where an upstream would find it, or it is
// reported as malformed.
func TestCredentialSpoofs(t *testing.T) {
	cases := readSpoofs(t, "credential.txt", "attack")
	if len(cases) < 40 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, spoof := range cases {
		t.Run(spoof.name, func(t *testing.T) {
			c := newCredentialCase(t, spoof)
			var plan Plan
			if got := c.look(&plan); got != c.found {
				t.Errorf("found %.80q, want %q", got, c.found)
			}
			if n := testing.AllocsPerRun(20, func() { c.look(&plan) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestLinesOfCookiesAreOne: a cookie in a second header line counts like one in the first.
func TestLinesOfCookiesAreOne(t *testing.T) {
	cookies := policy.JoinLines("Cookie", []string{"a=1", "session=s-1"})
	if value, state := identify.CookieValue(cookies, "session"); value != "s-1" || state != policy.CredentialValid {
		t.Errorf("%q: %q, %s", cookies, value, state)
	}
	cookies = policy.JoinLines("Cookie", []string{"session=s-2; a=1", "session=s-1"})
	if value, state := identify.CookieValue(cookies, "session"); value != "" || state != policy.CredentialMalformed {
		t.Errorf("%q: %q, %s", cookies, value, state)
	}
	if chain := policy.JoinLines("X-Forwarded-For", []string{"1.2.3.4", "203.0.113.9"}); chain != "1.2.3.4, 203.0.113.9" {
		t.Errorf("joined as %q", chain)
	}
}

// TestALongLineHidesNoToken: if lines are too long to be joined, a token in the first line does
// not count as absent, because some servers read only the first line.
func TestALongLineHidesNoToken(t *testing.T) {
	for _, length := range []int{100, identify.CredentialBytesMax, policy.CarrierBytesMax, 2 * policy.CarrierBytesMax} {
		field := policy.JoinLines("Authorization", []string{"Bearer k-1", "Basic " + strings.Repeat("a", length)})
		if token, state := identify.Bearer(field); token != "" || state != policy.CredentialMalformed {
			t.Errorf("with a line of %d bytes: %.20q, %s", length, token, state)
		}
	}
}

// TestManyBytesOfPairsAreNotExamined tests the bound on the bytes of cookies and of a query. Beyond
// it, a credential is malformed, whether or not it is there.
func TestManyBytesOfPairsAreNotExamined(t *testing.T) {
	var plan Plan
	for _, more := range []int{0, 1} {
		want, filling := policy.CredentialValid, strings.Repeat("a", identify.PairsBytesMax+more-len("key=k; b="))
		if more > 0 {
			want = policy.CredentialMalformed
		}
		if _, state := identify.CookieValue("key=k; b="+filling, "key"); state != want {
			t.Errorf("cookies of %d bytes more than the bound: %s, want %s", more, state, want)
		}
		if _, state := plan.who.QueryValue("key=k&bb="+filling, "key"); state != want {
			t.Errorf("a query of %d bytes more than the bound: %s, want %s", more, state, want)
		}
	}
}

// FuzzQueryValue: if net/url finds exactly one value, QueryValue finds the same value.
func FuzzQueryValue(f *testing.F) {
	for _, c := range readSpoofs(f, "credential.txt", "attack") {
		f.Add(newCredentialCase(f, c).request.query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		var plan Plan
		got, state := plan.who.QueryValue(query, "key")
		checkFound(t, query, got, state)
		if len(query) > identify.PairsBytesMax || strings.Contains(query, ";") {
			return // net/url omits every pair that contains a semicolon
		}
		values, _ := url.ParseQuery(query) // net/url also omits every pair with an invalid escape
		var want []string
		for _, v := range values["key"] {
			if v != "" {
				want = append(want, v)
			}
		}
		switch {
		case state == policy.CredentialAbsent && len(want) > 0:
			t.Fatalf("%q: absent, but there is %q", query, want)
		case state == policy.CredentialValid && (len(want) == 0 || want[0] != got):
			t.Fatalf("%q: found %q, net/url has %q", query, got, want)
		}
	})
}

// FuzzCookieValue: if CookieValue finds a value, the header contains it. If a cookie of the same
// name is put in front, CookieValue finds that cookie's value, or none. Cookies with other names
// change nothing.
func FuzzCookieValue(f *testing.F) {
	for _, c := range readSpoofs(f, "credential.txt", "attack") {
		f.Add(newCredentialCase(f, c).request.header["Cookie"])
	}
	f.Fuzz(func(t *testing.T, header string) {
		got, state := identify.CookieValue(header, "session")
		checkFound(t, header, got, state)
		if state == policy.CredentialValid && !strings.Contains(header, got) {
			t.Fatalf("%q: found %q", header, got)
		}
		// leave out headers near the bounds on length and on cookies
		if len(header) > identify.PairsBytesMax-100 || strings.Count(header, ";") > 990 {
			return
		}
		if again, after := identify.CookieValue("a=1; "+header+"; xsession=y", "session"); again != got || after != state {
			t.Fatalf("%q: %q (%s), and among others %q (%s)", header, got, state, again, after)
		}
		if other, after := identify.CookieValue("session=other; "+header, "session"); after == policy.CredentialAbsent ||
			after == policy.CredentialValid && other != "other" || state == policy.CredentialMalformed && after != state {
			t.Fatalf("%q behind another: %q (%s)", header, other, after)
		}
	})
}

// FuzzBearer: a token contains no byte at which a server could split it in two.
func FuzzBearer(f *testing.F) {
	for _, c := range readSpoofs(f, "credential.txt", "attack") {
		f.Add(newCredentialCase(f, c).request.header["Authorization"])
	}
	f.Fuzz(func(t *testing.T, field string) {
		got, state := identify.Bearer(field)
		checkFound(t, field, got, state)
		if after, ours := strings.CutPrefix(slim.LowerASCII(strings.Trim(field, " \t")), "bearer"); ours && state == policy.CredentialAbsent &&
			(after == "" || !identify.IsTokenByte(after[0])) {
			t.Fatalf("%q is absent", field)
		}
		obvious := true
		for i := 0; i < len(field); i++ {
			obvious = obvious && field[i] > ' ' && field[i] < 0x7f && field[i] != ','
		}
		if identify.IsToken(field) != obvious {
			t.Fatalf("%q is a token: %v", field, !obvious)
		}
		if strings.ContainsAny(got, " ,\t\r\n\x00") || !strings.HasSuffix(strings.Trim(field, " \t"), got) {
			t.Fatalf("%q: found %q", field, got)
		}
	})
}

// TestIsToken: each byte is checked on its own, at every position.
func TestIsToken(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			b := []byte(strings.Repeat("x", 20))
			b[at] = byte(c)
			if got, want := identify.IsToken(string(b)), c > ' ' && c < 0x7f && c != ','; got != want {
				t.Fatalf("%q: %v", b, got)
			}
		}
	}
}

func checkFound(t *testing.T, text, got string, state policy.CredentialState) {
	t.Helper()
	switch state {
	case policy.CredentialAbsent, policy.CredentialMalformed:
		if got != "" {
			t.Fatalf("%q: %s, but %q", text, state, got)
		}
	case policy.CredentialValid:
		if got == "" {
			t.Fatalf("%q: found nothing", text)
		}
	default:
		t.Fatalf("%q: %s", text, state)
	}
}
