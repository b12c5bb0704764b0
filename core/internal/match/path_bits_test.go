// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestBothFormsOfATrieFindTheSame: a small trie searched by sets of bits finds the patterns that
// the search node by node finds, for random patterns and paths.
func TestBothFormsOfATrieFindTheSame(t *testing.T) {
	random := seed.Random(t)
	piece := func(of ...string) string { return of[random.IntN(len(of))] }
	packed, found := 0, 0
	for range 3000 {
		matches := make([]policy.Match, 1+random.IntN(12))
		for i := range matches {
			var pattern strings.Builder
			for range 1 + random.IntN(5) {
				pattern.WriteString("/" + piece("a", "b", "ab", "c", "*", "**", "A"))
			}
			text := strings.ReplaceAll(strings.ReplaceAll(pattern.String(), "/**/**", "/**"), "/**/**", "/**")
			matches[i].Path = []string{text + piece("", "", "*", "/**")}
			if _, why, _ := ParsePattern(matches[i].Path[0], false, false); why != "" {
				matches[i].Path = []string{"/a/*/b"}
			}
		}
		m := NewMatcher(compileAll(t, matches))
		if m.packed == nil {
			continue
		}
		packed++
		for range 20 {
			var path strings.Builder
			for range random.IntN(7) {
				path.WriteString("/" + piece("a", "b", "ab", "abc", "c", "d"))
			}
			text := path.String() + piece("", "/")
			if text == "" {
				text = "/"
			}
			var one, two pathSearch
			m.packed.find(&one, text)
			m.paths.find(&two, text)
			for _, lists := range []*[]int32{&one.lists, &two.lists} {
				slices.Sort(*lists)
				*lists = slices.Compact(*lists)
			}
			found += len(two.lists)
			if !slices.Equal(one.lists, two.lists) {
				t.Fatalf("%q under %v: %v, and by the nodes %v", text, matches, one.lists, two.lists)
			}
		}
	}
	if packed < 1000 || found < 10_000 {
		t.Errorf("only %d tries were small, and only %d patterns found", packed, found)
	}
}
