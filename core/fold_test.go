// SPDX-License-Identifier: Apache-2.0

package core

import "testing"

// TestFoldTableIsUnicodes compares the table with package unicode, rune by rune.
func TestFoldTableIsUnicodes(t *testing.T) {
	for r := rune(0); r < foldRunes+1000; r++ {
		want := string(foldRuneSlow(r))
		if got := string(appendFolded(nil, string(r))); got != want {
			t.Fatalf("%q is folded to %q, want %q", r, got, want)
		}
	}
	if len(foldBlocks) > 256 {
		t.Fatalf("%d blocks do not fit a byte", len(foldBlocks))
	}
}
