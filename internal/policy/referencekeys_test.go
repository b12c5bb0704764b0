// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/identity"
)

// Every example in TOML is a keys file that is accepted.
func TestReferenceKeysFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) == 0 {
		t.Fatal("docs/policy.md has no example in TOML")
	}
	for _, example := range examples {
		path := filepath.Join(t.TempDir(), "keys.toml")
		if err := os.WriteFile(path, example[1], 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := identity.NewKeys(identity.KeysOptions{File: path})
		if err != nil {
			t.Errorf("the example\n%s\n%v", example[1], err)
			continue
		}
		if who, state := keys.Verify("nobody-has-this-key-0123456789abcdef"); state != core.CredentialUnknown {
			t.Errorf("an unknown key is %s of %v", state, who)
		}
		if err := keys.Close(); err != nil {
			t.Error(err)
		}
	}
}
