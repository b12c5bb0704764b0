// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		words           Words
		kind, id        string
		user, key, addr string
	}{
		{words: Words{Client: "user:u_42"}, kind: "user", id: "u_42", user: "u_42"},
		{words: Words{Client: "user:a:b", User: "other"}, kind: "user", id: "a:b", user: "a:b"},
		{words: Words{Client: "api_key:acme", User: "ann"}, kind: "api_key", id: "acme", user: "ann", key: "acme"},
		{words: Words{Client: "ip:::ffff:192.0.2.7"}, kind: "ip", id: "::ffff:192.0.2.7", addr: "192.0.2.7"},
		{words: Words{Client: "ip:2001:db8::/64"}, kind: "ip", id: "2001:db8::/64", addr: "2001:db8::"},
		{words: Words{Client: "header.X-User:ann"}, kind: "header.x-user", id: "ann"},
		{words: Words{Client: "cookie.Sid:ann"}, kind: "cookie.Sid", id: "ann"},
	} {
		got, err := Parse(c.words)
		if err != nil {
			t.Errorf("%+v: %v", c.words, err)
			continue
		}
		addr := ""
		if got.Peer().IsValid() {
			addr = got.Peer().String()
		}
		if got.String() != c.kind+":"+c.id || got.who.User != c.user || got.who.APIKey != c.key || addr != c.addr {
			t.Errorf("%+v is %s, %+v, %s", c.words, got, got.who, addr)
		}
	}
	for text, want := range map[string]string{"": "has no kind or no id", "ann": "has no kind or no id", "user:": "has no kind or no id", ":u": "has no kind or no id",
		"usr:ann": "has an unknown kind; write user:ID", "header.:x": "unknown kind", "ip:nowhere": "is not an address"} {
		if _, err := Parse(Words{Client: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestIn tests an address under a policy without identify. As for a request, the client is the
// address's network.
func TestIn(t *testing.T) {
	p := policyOf(t, "name: shop\nrules: [{name: api, limit: 1/1m}]\n")
	c, err := Parse(Words{Client: "ip:2001:db8::7", Tier: "premium"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.In(p)
	if err != nil {
		t.Fatal(err)
	}
	if who := f.Identity(); who.ID != "2001:db8::/64" || who.Tier != "premium" {
		t.Errorf("the client is %+v", who)
	}
}
