// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

func TestFailedLoadsLeaveNoVerifier(t *testing.T) {
	run, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	if err != nil {
		t.Fatal(err)
	}
	const tokens = `"identify":[{"jwt":{"secret":"a shared secret of 32 characters"}}]`
	for _, config := range []string{
		`{` + tokens + `,"rules":[{"limit":"1/1m"}],"store":{"type":"redis","url":"redis://localhost:1"}}`,
		`{` + tokens + `,"rules":[{"limit":"1/1x"}]}`,
		`{` + tokens + `,"rules":[{"limit":"1/1m","tiers":{"x":"1/1x"}}]}`,
		`{` + tokens + `,"rules":[{"limit":"1/1m"}],"policy":"/nonexistent/policy.yaml"}`,
	} {
		if _, err := run.LoadModuleByID("penstock", json.RawMessage(config)); err == nil {
			t.Errorf("%s was taken", config)
		}
		if n := verifiers.Len(); n != 0 {
			t.Errorf("%s: %d verifiers are left open", config, n)
		}
	}
}
