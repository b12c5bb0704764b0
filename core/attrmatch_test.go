// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"
	"testing"
)

// fits is what a glob means, as plainly as it can be said.
func fits(pattern, value string) bool {
	switch {
	case pattern == "":
		return value == ""
	case pattern[0] == '*':
		return fits(pattern[1:], value) || value != "" && fits(pattern, value[1:])
	default:
		return value != "" && value[0] == pattern[0] && fits(pattern[1:], value[1:])
	}
}

func TestGlobs(t *testing.T) {
	rnd := newRandom(t)
	matched := 0
	for range 20_000 {
		pattern, value := strings.Join(rnd.some(6, "a", "b", "*", "ab"), ""), strings.Join(rnd.some(6, "a", "b", "ab"), "")
		want := fits(pattern, value)
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

// TestAttrMatches: an attribute is no header. Its value is one, commas and all, and its name is as the proxy knows it.
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
		when := compiledMatch(t, Match{Attr: []AttrMatch{{Name: "plan", Values: c.values}}})
		m := newMatcher([]condition{when})
		var r request
		r.read(&fakeAttributes{attrs: map[string]string{"plan": c.value}})
		if got := len(m.appendMatches(nil, &r)) == 1; got != c.want {
			t.Errorf("%q of %q: %t, want %t", c.value, c.values, got, c.want)
		}
		for _, other := range []map[string]string{nil, {"Plan": c.value}} {
			if r.read(&fakeAttributes{attrs: other}); len(m.appendMatches(nil, &r)) != 0 {
				t.Errorf("%q matches %v, which lacks the attribute", c.values, other)
			}
		}
	}
}

func TestAttrMatchProblems(t *testing.T) {
	for _, c := range []struct {
		attr AttrMatch
		want string
	}{
		{AttrMatch{Name: ""}, "m.attr[0]: is not the name of an attribute"},
		{AttrMatch{Name: "a\x00"}, "is not the name of an attribute"},
		{AttrMatch{Name: strings.Repeat("a", 257)}, "has 257 bytes"},
		{AttrMatch{Name: "a", Values: []string{"b", ""}}, "m.attr.a[1]: is empty"},
		{AttrMatch{Name: "a", Values: []string{strings.Repeat("b", 4097)}}, "longer than 4096"},
		{AttrMatch{Name: "a", Values: []string{strings.Repeat("*b", 9)}}, "holds more than 8 stars"},
		{AttrMatch{Name: "a", Values: make([]string, 1001)}, "has 1001 entries"},
	} {
		problems := matchProblems("m", Match{Attr: []AttrMatch{c.attr}})
		if !strings.Contains(problems.Error(), c.want) {
			t.Errorf("%.40q: %.300q, want %q", c.attr, problems.Error(), c.want)
		}
	}
}
