// SPDX-License-Identifier: Apache-2.0

package named

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		words           Words
		kind, id        string
		user, key, addr string
	}{
		{Words{Client: "user:u_42"}, "user", "u_42", "u_42", "", ""},
		{Words{Client: "user:a:b", User: "other"}, "user", "a:b", "a:b", "", ""},
		{Words{Client: "api_key:acme", User: "ann"}, "api_key", "acme", "ann", "acme", ""},
		{Words{Client: "ip:::ffff:192.0.2.7"}, "ip", "::ffff:192.0.2.7", "", "", "192.0.2.7"},
		{Words{Client: "ip:2001:db8::/64"}, "ip", "2001:db8::/64", "", "", "2001:db8::"},
		{Words{Client: "header.X-User:ann"}, "header.x-user", "ann", "", "", ""},
		{Words{Client: "cookie.Sid:ann"}, "cookie.Sid", "ann", "", "", ""},
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
	for text, want := range map[string]string{"": "names nobody", "ann": "names nobody", "user:": "names nobody", ":u": "names nobody",
		"usr:ann": "of no kind that there is; write user:ID", "header.:x": "of no kind", "ip:nowhere": "is no address"} {
		if _, err := Parse(Words{Client: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestIn holds that an address is the client that a policy makes of it.
func TestIn(t *testing.T) {
	limit, err := core.ParseLimit("1/1m")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := core.Compile(core.Policy{Name: "shop", Rules: []core.Rule{{Name: "api", Limits: []core.Limit{limit}}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(Words{Client: "ip:2001:db8::7", Tier: "premium"})
	if err != nil {
		t.Fatal(err)
	}
	if who := c.In(rules); who.ID != "2001:db8::/64" || who.Tier != "premium" {
		t.Errorf("the client is %+v", who)
	}
	c, err = Parse(Words{Client: "user:u_42"})
	if err != nil {
		t.Fatal(err)
	}
	if who := c.In(rules); who.Kind != "user" || who.ID != "u_42" {
		t.Errorf("the client is %+v", who)
	}
}
