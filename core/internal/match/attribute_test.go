// SPDX-License-Identifier: Apache-2.0

package match

import (
	"github.com/penstock/penstock/internal/test/request"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// fitsGlob matches globs with the simplest possible implementation.
func fitsGlob(pattern, value string) bool {
	switch {
	case pattern == "":
		return value == ""
	case pattern[0] == '*':
		return fitsGlob(pattern[1:], value) || value != "" && fitsGlob(pattern, value[1:])
	default:
		return value != "" && value[0] == pattern[0] && fitsGlob(pattern[1:], value[1:])
	}
}

func TestGlobs(t *testing.T) {
	rnd := request.NewRandom(t)
	matched := 0
	for range 20_000 {
		pattern, value := strings.Join(rnd.Some(6, "a", "b", "*", "ab"), ""), strings.Join(rnd.Some(6, "a", "b", "ab"), "")
		want := fitsGlob(pattern, value)
		if got := parseGlob(pattern).matches(value); got != want {
			t.Fatalf("%q matches %q: %t, want %t", pattern, value, got, want)
		}
		if want {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("%d of 20000 matched", matched)
	}
}

// TestAttrMatches: an attribute, unlike a header, has one value that may contain commas, and its
// name is case-sensitive.
func TestAttrMatches(t *testing.T) {
	for _, c := range []struct {
		values []string
		value  string
		want   bool
	}{
		{nil, "", true},
		{nil, "x", true},
		{[]string{"*"}, "", true},
		{[]string{"**"}, "x", true},
		{[]string{"gold"}, "gold", true},
		{[]string{"gold"}, "Gold", false},
		{[]string{"gold"}, "silver, gold", false},
		{[]string{"gold"}, "gold ", false},
		{[]string{"silver", "go*"}, "gold", true},
		{[]string{"/api/*/action"}, "/api/1/action", true},
		{[]string{"/api/*/action"}, "/api/action", false},
		{[]string{"bar*b"}, "bar", false},
	} {
		when := compiledMatch(t, policy.Match{Attr: []policy.AttrMatch{{Name: "plan", Values: c.values}}})
		m := NewMatcher([]Condition{when})
		var r Request
		r.Read(&request.Attributes{Attrs: map[string]string{"plan": c.value}})
		if got := len(m.AppendMatches(nil, &r)) == 1; got != c.want {
			t.Errorf("%q of %q: %t, want %t", c.value, c.values, got, c.want)
		}
		for _, other := range []map[string]string{nil, {"Plan": c.value}} {
			if r.Read(&request.Attributes{Attrs: other}); len(m.AppendMatches(nil, &r)) != 0 {
				t.Errorf("%q matches %v, which lacks the attribute", c.values, other)
			}
		}
	}
}
