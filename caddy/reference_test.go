// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every Caddyfile in docs/policy.md is one.
func TestReferenceCaddyfiles(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(examples) < 2 {
		t.Fatalf("docs/policy.md has %d Caddyfiles, want at least 2", len(examples))
	}
	for _, example := range examples {
		if got := adapt(t, example[1]); !strings.HasPrefix(got, "{") {
			t.Errorf("the Caddyfile\n%s\n%s", example[1], got)
		}
	}
}
