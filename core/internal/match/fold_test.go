// SPDX-License-Identifier: Apache-2.0

package match

import (
	"testing"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/test/seed"
)

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

// TestFoldLeavesInvalidBytes compares folded texts with the result of folding rune by rune, for
// bytes that are mostly not valid UTF-8.
func TestFoldLeavesInvalidBytes(t *testing.T) {
	random := seed.Random(t)
	parts := []string{"a", "A", "\x80", "\xbf", "\xc0", "\xc1", "\xc2", "\xc3", "\x89", "\xe0", "\xe1", "\xba", "\x9e", "\xed", "\xa0", "\xef",
		"\xf0", "\x90", "\xf4", "\xf5", "\xff", "\u00c9", "\u1e9e", "\u212a", "\ufffd", "\U00010400"}
	for range 100_000 {
		var text string
		for range random.IntN(10) {
			text += parts[random.IntN(len(parts))]
		}
		var want []byte
		for rest := text; rest != ""; {
			r, size := utf8.DecodeRuneInString(rest)
			if r == utf8.RuneError && size == 1 {
				want = append(want, rest[0])
			} else {
				want = utf8.AppendRune(want, foldRuneSlow(r))
			}
			rest = rest[size:]
		}
		if got := appendFolded(nil, text); string(got) != string(want) {
			t.Fatalf("%q is folded to %q, want %q", text, got, want)
		}
	}
}
