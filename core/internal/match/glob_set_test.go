// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/request"
)

// globsOf parses the texts as globs.
func globsOf(texts []string) []glob {
	globs := make([]glob, len(texts))
	for i := range texts {
		globs[i] = parseGlob(texts[i])
	}
	return globs
}

// checkGlobSet compares the set of the globs with the globs, one by one.
func checkGlobSet(t testing.TB, states *[]globState, s *globSet, value string) (matched bool) {
	t.Helper()
	want := slices.ContainsFunc(s.globs, func(g glob) bool { return g.matches(value) })
	if found := s.matches(states, value); found != want {
		t.Fatalf("%q matches: %v, want %v of %q", value, found, want, s.globs)
	}
	return want
}

// TestGlobSetAgreesWithGlobs: a set finds exactly the globs that match, and for each of them the
// first occurrence of each piece.
func TestGlobSetAgreesWithGlobs(t *testing.T) {
	rnd := request.NewRandom(t)
	var states []globState // shared by all sets, as in a request
	compared, matched := 0, 0
	for range 3_000 {
		units := [][]string{{"a", "b", "*"}, {"a", "*"}, {"ab", "ba", "a", "*", "**"}, {"bot", "b", "t", "o", "*", "*", "\x00", "\xff"}}[rnd.IntN(4)]
		var texts []string
		for range fewValues + 1 + rnd.IntN(60) {
			text := rnd.One("", "*", "*") + strings.Join(rnd.Some(8, units...), "") + rnd.One("", "*")
			if len(text) > 6 || rnd.IntN(100) == 0 {
				texts = append(texts, text)
			}
		}
		s := newGlobSet(globsOf(texts))
		if s == nil {
			continue
		}
		for range 10 {
			value := strings.ReplaceAll(strings.Join(rnd.Some(1+rnd.IntN(40), units...), ""), "*", rnd.One("", "a", "*"))
			compared++
			if checkGlobSet(t, &states, s, value) {
				matched++
			}
		}
	}
	if matched < compared/20 || matched > compared*19/20 {
		t.Errorf("%d of %d values matched", matched, compared)
	}
}

// FuzzGlobSet: a set finds exactly the globs that match.
func FuzzGlobSet(f *testing.F) {
	f.Add("*a*|*aa*|a*b*|*b*a*b|*|b*a*a|**a**|*ab*ab*|*ba*|*aab*|a*a*a", "aabab")
	f.Add(strings.Repeat("*bot1*|*bot*2*|", 9), "botbotbo2")
	f.Fuzz(func(t *testing.T, texts, value string) {
		list := strings.Split(texts, "|")
		if len(list) > MatchListMax || len(value) > FieldBytesMax || slices.ContainsFunc(list, func(text string) bool { return strings.Count(text, "*") > AttrStarsMax }) {
			return
		}
		if s := newGlobSet(globsOf(list)); s != nil {
			checkGlobSet(t, new([]globState), s, value)
		}
	})
}

// manyGlobs returns n globs, of which none matches a value that has only the letters b, o and t.
func manyGlobs(n int, format string) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf(format, i)
	}
	return texts
}

// TestManyGlobsCostLikeFew: the work for a value hardly grows with the number of globs in a list.
// One by one, a thousand globs cost ten times as much as a hundred.
func TestManyGlobsCostLikeFew(t *testing.T) {
	value := strings.Repeat("botbotbo", 1000)
	for _, format := range []string{"*bot%dz*", "*bo*t%dz*", "bot*%dz*bot", "*bot*%dz*"} {
		took := func(n int) int64 {
			when := compiledMatch(t, policy.Match{Attr: []policy.AttrMatch{{Name: "ua", Values: manyGlobs(n, format)}}})
			m := NewMatcher([]Condition{when})
			var r Request
			a := &request.Attributes{Attrs: map[string]string{"ua": value}}
			return int64(leastTime(20, func() {
				if r.Read(a); len(m.AppendMatches(nil, &r)) != 0 {
					t.Fatalf("%s matches", format)
				}
			}))
		}
		if hundred, thousand := took(100), took(1000); thousand > 4*hundred {
			t.Errorf("%q: 1000 globs take %d ns, 100 take %d ns", format, thousand, hundred)
		}
	}
}

// TestGlobSetDoesNotAllocate: a request's buffers are reused, and their size depends on the policy
// only.
func TestGlobSetDoesNotAllocate(t *testing.T) {
	when := compiledMatch(t, policy.Match{Attr: []policy.AttrMatch{{Name: "ua", Values: manyGlobs(1000, "*b*o*t*%dz*")}}})
	m := NewMatcher([]Condition{when})
	var r Request
	var found []int32
	a := &request.Attributes{Attrs: map[string]string{"ua": strings.Repeat("bot", 2000)}}
	if n := testing.AllocsPerRun(20, func() {
		r.Read(a)
		found = m.AppendMatches(found[:0], &r)
	}); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// BenchmarkGlobs measures a list of globs against a value that begins many of their pieces, and
// against the text of a usual browser, one by one and as a set.
func BenchmarkGlobs(b *testing.B) {
	browser := "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36 Edg/126.0.0.0 abcde"
	for _, n := range []int{1, 4, 8, 16, 32, 100, 1000} {
		for _, value := range []string{browser[:120], strings.Repeat("botbotbo", 1000)} {
			at := attrCondition{values: globsOf(manyGlobs(n, "*bot%dz*"))}
			s := newGlobSet(globsOf(manyGlobs(max(n, fewValues+1), "*bot%dz*")))
			var r Request
			b.Run(fmt.Sprintf("globs=%d/bytes=%d/one by one", n, len(value)), func(b *testing.B) {
				for b.Loop() {
					at.matches(value, &r)
				}
			})
			b.Run(fmt.Sprintf("globs=%d/bytes=%d/set", n, len(value)), func(b *testing.B) {
				for b.Loop() {
					s.matches(&r.globs, value)
				}
			})
		}
	}
}
