// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
)

// TestReferenceKeysFile: every example in TOML is a valid keys file.
func TestReferenceKeysFile(t *testing.T) {
	text := documents(t, "docs/reference/*.md") + documents(t, "docs/guides/*.md")
	examples := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(examples) == 0 {
		t.Fatal("docs has no example in TOML")
	}
	for _, example := range examples {
		path := filepath.Join(t.TempDir(), "keys.toml")
		if err := os.WriteFile(path, []byte(example[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := credential.NewKeys(credential.KeysOptions{File: path})
		if err != nil {
			t.Errorf("the example\n%s\n%v", example[1], err)
			continue
		}
		if who, state := keys.Verify("nobody-has-this-key-0123456789abcdef"); state != policy.CredentialUnknown {
			t.Errorf("an unknown key is %s of %v", state, who)
		}
		if err := keys.Close(); err != nil {
			t.Error(err)
		}
	}
}
