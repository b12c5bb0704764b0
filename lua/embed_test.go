// SPDX-License-Identifier: Apache-2.0

package lua

import (
	"slices"
	"testing"
)

// TestParts fails if a file of this folder is not in the script.
func TestParts(t *testing.T) {
	entries, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(parts, e.Name()) {
			t.Errorf("%s is not part of the script", e.Name())
		}
	}
	if len(entries) != len(parts) {
		t.Errorf("%d files, %d parts", len(entries), len(parts))
	}
}
