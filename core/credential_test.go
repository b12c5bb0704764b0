// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// credentialCase is a case of credential.txt made ready.
type credentialCase struct {
	place   CredentialSource
	request client
	found   string
}

func newCredentialCase(t testing.TB, c spoofCase) credentialCase {
	t.Helper()
	kinds := map[string]CredentialPlace{"bearer": FromBearer, "header": FromHeader, "query": FromQuery, "cookie": FromCookie}
	out := credentialCase{request: client{header: map[string]string{}}}
	padding, values := "", 0
	// Padding of a token or key stands behind what the line says, of a list before it.
	padded := func(value string) string {
		values++
		if out.place.Kind == FromBearer || out.place.Kind == FromHeader || strings.HasSuffix(value, "=") {
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
			out.place = newCarriers(Identify{From: []CredentialSource{{Kind: place, Name: name}}})[0]
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
	p.request.attrs = &c.request
	text, state := p.credential(&c.place)
	if state != CredentialValid {
		return state.String()
	}
	return text
}

// TestCredentialSpoofs: what is found is what an upstream would find, or it is malformed.
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

// TestLinesOfCookiesAreOne: what stands in a second line is a cookie as in the first.
func TestLinesOfCookiesAreOne(t *testing.T) {
	cookies := JoinLines("Cookie", []string{"a=1", "session=s-1"})
	if value, state := cookieValue(cookies, "session"); value != "s-1" || state != CredentialValid {
		t.Errorf("%q: %q, %s", cookies, value, state)
	}
	cookies = JoinLines("Cookie", []string{"session=s-2; a=1", "session=s-1"})
	if value, state := cookieValue(cookies, "session"); value != "" || state != CredentialMalformed {
		t.Errorf("%q: %q, %s", cookies, value, state)
	}
	if chain := JoinLines("X-Forwarded-For", []string{"1.2.3.4", "203.0.113.9"}); chain != "1.2.3.4, 203.0.113.9" {
		t.Errorf("joined as %q", chain)
	}
}

// FuzzQueryValue: what is found is what net/url finds, wherever that finds one value and no other.
func FuzzQueryValue(f *testing.F) {
	for _, c := range readSpoofs(f, "credential.txt", "attack") {
		f.Add(newCredentialCase(f, c).request.query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		var plan Plan
		got, state := plan.queryValue(query, "key")
		checkFound(t, query, got, state)
		if len(query) > carrierBytesMax || strings.Contains(query, ";") {
			return // net/url leaves out every pair with a semicolon
		}
		values, _ := url.ParseQuery(query) // and those with an escape that is none
		var want []string
		for _, v := range values["key"] {
			if v != "" {
				want = append(want, v)
			}
		}
		switch {
		case state == CredentialAbsent && len(want) > 0:
			t.Fatalf("%q: absent, but there is %q", query, want)
		case state == CredentialValid && (len(want) == 0 || want[0] != got):
			t.Fatalf("%q: found %q, net/url has %q", query, got, want)
		}
	})
}

// FuzzCookieValue: what is found stands in the header, alone under its name; leaving cookies of other names out or in
// changes nothing.
func FuzzCookieValue(f *testing.F) {
	for _, c := range readSpoofs(f, "credential.txt", "attack") {
		f.Add(newCredentialCase(f, c).request.header["Cookie"])
	}
	f.Fuzz(func(t *testing.T, header string) {
		got, state := cookieValue(header, "session")
		checkFound(t, header, got, state)
		if state == CredentialValid && !strings.Contains(header, got) {
			t.Fatalf("%q: found %q", header, got)
		}
		if len(header) > carrierBytesMax-100 {
			return
		}
		if again, after := cookieValue("a=1; "+header+"; xsession=y", "session"); again != got || after != state {
			t.Fatalf("%q: %q (%s), and among others %q (%s)", header, got, state, again, after)
		}
		if other, after := cookieValue("session=other; "+header, "session"); after == CredentialAbsent ||
			after == CredentialValid && other != "other" || state == CredentialMalformed && after != state {
			t.Fatalf("%q behind another: %q (%s)", header, other, after)
		}
	})
}

// FuzzBearer: a token has no byte that could make it two.
func FuzzBearer(f *testing.F) {
	for _, c := range readSpoofs(f, "credential.txt", "attack") {
		f.Add(newCredentialCase(f, c).request.header["Authorization"])
	}
	f.Fuzz(func(t *testing.T, field string) {
		got, state := bearer(field)
		checkFound(t, field, got, state)
		if after, ours := strings.CutPrefix(LowerASCII(trimSpace(field)), "bearer"); ours && state == CredentialAbsent &&
			(after == "" || !isTokenByte(after[0])) {
			t.Fatalf("%q is absent", field)
		}
		obvious := true
		for i := 0; i < len(field); i++ {
			obvious = obvious && field[i] > ' ' && field[i] < 0x7f && field[i] != ','
		}
		if isToken(field) != obvious {
			t.Fatalf("%q is a token: %v", field, !obvious)
		}
		if strings.ContainsAny(got, " ,\t\r\n\x00") || !strings.HasSuffix(trimSpace(field), got) {
			t.Fatalf("%q: found %q", field, got)
		}
	})
}

// TestIsToken: at every place among others each byte counts for itself.
func TestIsToken(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			b := []byte(strings.Repeat("x", 20))
			b[at] = byte(c)
			if got, want := isToken(string(b)), c > ' ' && c < 0x7f && c != ','; got != want {
				t.Fatalf("%q: %v", b, got)
			}
		}
	}
}

func checkFound(t *testing.T, text, got string, state CredentialState) {
	t.Helper()
	switch state {
	case CredentialAbsent, CredentialMalformed:
		if got != "" {
			t.Fatalf("%q: %s, but %q", text, state, got)
		}
	case CredentialValid:
		if got == "" {
			t.Fatalf("%q: found nothing", text)
		}
	default:
		t.Fatalf("%q: %s", text, state)
	}
}
