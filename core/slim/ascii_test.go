// SPDX-License-Identifier: Apache-2.0

package slim_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/slim"
)

// TestASCII compares the functions with the standard library, which also handles letters outside
// ASCII.
func TestASCII(t *testing.T) {
	var text []byte
	for c := range 256 {
		text = append(text, byte(c))
	}
	for _, text := range []string{"", "a", "Z", "X-Api-Key", "[@`{", string(text[:128])} {
		if slim.LowerASCII(text) != strings.ToLower(text) || slim.UpperASCII(text) != strings.ToUpper(text) {
			t.Errorf("%q: %q and %q", text, slim.LowerASCII(text), slim.UpperASCII(text))
		}
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{"", "", true}, {"BeareR", "bEARer", true}, {"a", "aa", false}, {"[", "{", false}, {"k", "\u212a", false}} {
		if slim.EqualASCII(c.a, c.b) != c.want {
			t.Errorf("%q and %q", c.a, c.b)
		}
	}
	if got := slim.LowerASCII(string(text[128:])); got != string(text[128:]) {
		t.Errorf("%q", got)
	}
}

// TestSortNumbers tests insertion sort and heap sort. Equal elements must keep their order where
// inOrder is set.
func TestSortNumbers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		list := make([]int32, n)
		for i := range list {
			list[i] = random.Int32N(int32(n/2 + 1))
		}
		order := slim.Order(n, func(i, j int) int { return int(list[i]) - int(list[j]) })
		want := make([]int32, n)
		for i := range want {
			want[i] = int32(i)
		}
		slices.SortStableFunc(want, func(i, j int32) int { return int(list[i]) - int(list[j]) })
		if !slices.Equal(order, want) {
			t.Fatalf("%v: %v", list, order)
		}
		sorted := slices.Clone(list)
		slices.Sort(sorted)
		if slim.SortNumbers(list, func(a, b int32) bool { return a < b }); !slices.Equal(list, sorted) {
			t.Fatalf("%v", list)
		}
	}
}
