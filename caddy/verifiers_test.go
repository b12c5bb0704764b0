// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/policy"
)

func tokensAnd(t *testing.T, ways string) *policy.Document {
	t.Helper()
	d := new(policy.Document)
	text := `{"name":"pool","identify":[{"jwt":{"secret":"a shared secret of 32 characters","audience":"pool"}}` + ways + `],
		"rules":[{"name":"r","limit":"1/1m"}]}`
	if err := json.Unmarshal([]byte(text), d); err != nil {
		t.Fatal(err)
	}
	return d
}

func pooledVerifiers() (n int) {
	verifierPool.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}

// TestVerifiersOutliveAReload: what verifies credentials stays as long as somebody uses it with the same settings,
// whatever else of its policy changes.
func TestVerifiersOutliveAReload(t *testing.T) {
	first, err := openVerifiers(tokensAnd(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	second, err := openVerifiers(tokensAnd(t, `,{"jwt":{"secret":"another shared secret, 32 bytes!","header":"X-Token"}},{"ip":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if first.list[0] != second.list[0] || second.list[1] == nil || second.list[1] == second.list[0] || second.list[2] != nil {
		t.Errorf("verifiers %v and %v: the same for the same settings, none by address", first.list, second.list)
	}
	for i, closing := range []struct {
		v    *verifiers
		left int
	}{{first, 2}, {first, 2}, {second, 0}} {
		if err := closing.v.close(); err != nil || pooledVerifiers() != closing.left {
			t.Errorf("closing %d: %v, %d left, want %d", i, err, pooledVerifiers(), closing.left)
		}
	}
}

func TestWhatCannotBeOpenedIsToldWithItsPlace(t *testing.T) {
	_, err := openVerifiers(tokensAnd(t, `,{"api_key":{"keys_file":"/nonexistent/keys.toml"}}`))
	if err == nil || !strings.Contains(err.Error(), "identify[1].api_key") || !strings.Contains(err.Error(), "/nonexistent/keys.toml") {
		t.Errorf("error: %v", err)
	}
	if n := pooledVerifiers(); n != 0 {
		t.Errorf("%d verifiers are left open", n)
	}
}

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
		if n := pooledVerifiers(); n != 0 {
			t.Errorf("%s: %d verifiers are left open", config, n)
		}
	}
}
