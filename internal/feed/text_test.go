// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/test/seed"
)

// unescaped is the inverse of Escape for texts that were not cut.
func unescaped(t *testing.T, text string) string {
	var out []byte
	for before, after, more := strings.Cut(text, string(escape)); ; before, after, more = strings.Cut(after, string(escape)) {
		out = append(out, before...)
		if !more {
			return string(out)
		}
		c, err := hex.DecodeString(after[:2])
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		out, after = append(out, c...), after[2:]
	}
}

// TestEscapesAreBijective tests that an escape can be read back, that ordinary names are their own
// escapes, and that a control plane changes no escape of a node.
func TestEscapesAreBijective(t *testing.T) {
	random := seed.Random(t)
	pieces := []string{"a", "%", "\\", "\xff", "\x00", "\xf0\x9f", "\uFFFD", "é", "…", "\u0085", "\x1b", "00", "日本"}
	for range 20_000 {
		var text strings.Builder
		for range random.IntN(34) {
			text.WriteString(pieces[random.IntN(len(pieces))])
		}
		escaped := Escape(text.String())
		if got := unescaped(t, escaped); got != text.String() {
			t.Fatalf("%q is escaped as %q, which is read as %q", text.String(), escaped, got)
		}
		if !utf8.ValidString(escaped) || Fit(escaped) != escaped {
			t.Fatalf("%q is changed again to %q", escaped, Fit(escaped))
		}
	}
	for _, name := range []string{"", "header.x-user:ann", "user:50%00", `corp\ann`, "ключ:значение", strings.Repeat("é", TextBytesMost/2)} {
		if Escape(name) != name || Fit(name) != name {
			t.Errorf("%q becomes %q and %q", name, Escape(name), Fit(name))
		}
	}
}

// TestLongTextsAreCut tests that a text that is too long becomes one of bounded length that differs
// from those of other texts.
func TestLongTextsAreCut(t *testing.T) {
	seen := map[string]bool{}
	for _, piece := range []string{"\xff", "\x00", "a", "é", "日", "\uFFFD", "\xf0\x9f", "ab\xff"} {
		for n := 1; n < 700; n++ {
			for _, text := range []string{strings.Repeat(piece, n), strings.Repeat(piece, n) + "z"} {
				escaped := Escape(text)
				if len(escaped) > TextBytesMost || !utf8.ValidString(escaped) || Fit(escaped) != escaped {
					t.Fatalf("%q becomes %q of %d bytes", text, escaped, len(escaped))
				}
				if seen[escaped] {
					t.Fatalf("%q becomes %q, like another text", text, escaped)
				}
				seen[escaped] = true
			}
		}
	}
}
