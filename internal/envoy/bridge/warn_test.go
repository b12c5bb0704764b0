// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestDoubtfulPoliciesAreWarnedOf: warnings are logged once at the start and at each edit, for
// operators who did not run `penstock validate`.
func TestDoubtfulPoliciesAreWarnedOf(t *testing.T) {
	const rules = "rules: [{ name: api, limit: 2/1h }]\n"
	var log bytes.Buffer
	h := open(t, "name: shop\nidentify: [{ cookie: { name: sid, unverified: true } }, { ip: {} }]\n"+rules,
		func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	edit := func(policy string) {
		h.write(policy)
		if err := h.b.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "identify[0].cookie.name") ||
		!strings.Contains(text, "policy=shop") {
		t.Errorf("the start said\n%s", text)
	}
	log.Reset()
	edit("name: shop\nidentify: [{ header: { name: X-User, unverified: true } }, { ip: {} }]\n" + rules)
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "identify[0].header.name") {
		t.Errorf("the edit said\n%s", text)
	}
	log.Reset()
	edit("name: shop\n" + rules)
	if text := log.String(); strings.Contains(text, "level=WARN") {
		t.Errorf("a policy that nothing is to be said of brought\n%s", text)
	}
}
