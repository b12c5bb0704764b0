// SPDX-License-Identifier: Apache-2.0

package slim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestTrim compares the functions with the standard library's.
func TestTrim(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		text := make([]byte, random.IntN(8))
		for i := range text {
			text[i] = " \t\r\n\v\f/,.=ab"[random.IntN(12)]
		}
		for _, set := range []string{"/", "=", " \t", `ab.`, "[]"} {
			s := string(text)
			if a, b := Trim(s, set), strings.Trim(s, set); a != b {
				t.Fatalf("seed %d: Trim(%q, %q) = %q, want %q", seed, s, set, a, b)
			}
			if a, b := TrimLeft(s, set), strings.TrimLeft(s, set); a != b {
				t.Fatalf("seed %d: TrimLeft(%q, %q) = %q, want %q", seed, s, set, a, b)
			}
			if a, b := IndexAny(s, set), strings.IndexAny(s, set); a != b {
				t.Fatalf("seed %d: IndexAny(%q, %q) = %d, want %d", seed, s, set, a, b)
			}
			if a, b := Split(s, set[:1]), strings.Split(s, set[:1]); !slices.Equal(a, b) {
				t.Fatalf("seed %d: Split(%q, %q) = %q, want %q", seed, s, set[:1], a, b)
			}
			if a, b := TrimSpace(s), strings.TrimSpace(s); a != b {
				t.Fatalf("seed %d: TrimSpace(%q) = %q, want %q", seed, s, a, b)
			}
		}
	}
}
