// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// TestDomains: a policy covers the domain of its name and the domains that its rules match. An edit
// changes which domains are covered.
func TestDomains(t *testing.T) {
	said := new(eventually.Journal)
	h := open(t, `
name: shop
rules:
  - { name: a, match: { attr: { envoy.domain: [one, "two-*"], k: three } }, limit: 1/1m }
`, func(o *Options) { o.Logger = said.Logger() })
	o := h.b.Observer()
	is := func(domain string, want bool) {
		t.Helper()
		if got, known := o.RulesetOf(domain); got != h.b.policy.Current().Ruleset || known != want {
			t.Errorf("%s: %v, known %t", domain, got, known)
		}
	}
	for domain, want := range map[string]bool{"shop": true, "one": true, "two-a": true, "two-": true, "two": false, "three": false, "": false} {
		is(domain, want)
	}
	h.write("name: shop\nrules: [{ name: a, match: { attr: { envoy.domain: \"*\" } }, limit: 1/1m }]\n")
	if err := h.b.Reload(); err != nil {
		t.Fatal(err)
	}
	is("whatever", true)
	h.write("name: other\nrules: [{ name: a, limit: 1/1m }]\n")
	if err := h.b.Reload(); err != nil {
		t.Fatal(err)
	}
	is("one", false)
	is("shop", false)
	is("other", true)
	o.Unmarked()
	o.Unmarked()
	for what, times := range map[string]int{`renamed the policy`: 1, `before=shop now=other`: 1, `does not cover, so its requests are not limited`: 1, `known="[one shop]"`: 1,
		`does not say whether the stream has ended`: 1} {
		if n := strings.Count(said.String(), what); n != times {
			t.Errorf("%d times %q in the log:\n%s", n, what, said)
		}
	}
}
