// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

func tokensAnd(t *testing.T, ways string) *policyfile.Document {
	t.Helper()
	d := new(policyfile.Document)
	text := `{"name":"pool","identify":[{"jwt":{"secret":"a shared secret of 32 characters","audience":"pool"}}` + ways + `],
		"rules":[{"name":"r","limit":"1/1m"}]}`
	if err := json.Unmarshal([]byte(text), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestVerifiersOutliveAReload: a verifier stays open while a version uses it with the same
// settings, whatever else in the policy changes.
func TestVerifiersOutliveAReload(t *testing.T) {
	pool := NewVerifiers(slog.New(slog.DiscardHandler))
	first, err := pool.openFor(tokensAnd(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	second, err := pool.openFor(tokensAnd(t, `,{"jwt":{"secret":"another shared secret, 32 bytes!","header":"X-Token"}},{"ip":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if first.list[0] != second.list[0] || second.list[1] == nil || second.list[1] == second.list[0] || second.list[2] != nil {
		t.Errorf("verifiers %v and %v: the same for the same settings, none by address", first.list, second.list)
	}
	for i, closing := range []struct {
		v    *versionVerifiers
		left int
	}{{first, 2}, {first, 2}, {second, 0}} {
		if err := closing.v.close(); err != nil || pool.Len() != closing.left {
			t.Errorf("closing %d: %v, %d left, want %d", i, err, pool.Len(), closing.left)
		}
	}
}

func TestUnreadableFilesAreReportedWithTheirPlace(t *testing.T) {
	pool := NewVerifiers(slog.New(slog.DiscardHandler))
	_, err := pool.openFor(tokensAnd(t, `,{"api_key":{"keys_file":"/nonexistent/keys.toml"}}`))
	if err == nil || !strings.Contains(err.Error(), "identify[1].api_key") || !strings.Contains(err.Error(), "/nonexistent/keys.toml") {
		t.Errorf("error: %v", err)
	}
	if n := pool.Len(); n != 0 {
		t.Errorf("%d verifiers are left open", n)
	}
}
