// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// slowUnits are what slow paths are made of: each means something to the normal form, to a fold or to a pattern.
var slowUnits = []string{"/", `\`, ";", "a", "A", ".", "..", "/a", `\a`, "%61", "%2e", "%5C", "%3B", "%25", "%4", "%", "\u00c9", "\u212a",
	"\u1e9e", "\xff", "/a/b", "a/../", "/x.", "%2F", "%C3%89"}

// slowMatches are patterns that a path can bring into play again and again.
func slowMatches(t testing.TB) []condition {
	return compileAll(t, []Match{{Path: []string{"/**/a/**/b/**/c"}}, {Path: []string{"/**/a/a/b", "/**/*/a/*/b/x"}},
		{Path: []string{"/api/*"}}, {Path: []string{"/**/A/**/z"}, CaseSensitive: true}, {Path: []string{"/**/admin", "/**/a*"}}})
}

// repeated repeats the unit up to a length.
func repeated(unit string, length int) string {
	return "/" + strings.Repeat(unit, max(0, length)/len(unit))
}

// eachSlowPath calls do with paths of the length made of each unit, of each two and, of the shorter, of each three.
func eachSlowPath(length int, do func(path string)) {
	for _, a := range slowUnits {
		do(repeated(a, length))
		for _, b := range slowUnits {
			do(repeated(a+b, length))
			do(repeated(a, length/2) + repeated(b, length/2))
			do(repeated(a, 60) + repeated(b, length-60)) // so many separators that the path is still read
			for _, c := range slowUnits[:8] {
				do(repeated(a+b+c, length))
			}
		}
	}
}

// TestPathWorkIsLinear counts what the work on a path grows with: bytes written and segments looked up.
func TestPathWorkIsLinear(t *testing.T) {
	var r request
	check := func(path string) {
		r.read(&fakeAttributes{path: path})
		if r.long {
			if len(r.buffer) != 0 {
				t.Fatalf("%.40q, of %d bytes, is refused after %d bytes were written", path, len(path), len(r.buffer))
			}
			return
		}
		segments := 0
		for _, reading := range r.readings {
			segments += strings.Count(reading.path, "/")
		}
		if segments > pathPiecesMax+8 || len(r.buffer) > 18*(len(path)+1) {
			t.Fatalf("%.40q, of %d bytes: %d bytes are written, %d segments are looked up", path, len(path), len(r.buffer), segments)
		}
	}
	for _, length := range []int{64, 1 << 10, 2 << 10, 8<<10 - 8, 60 << 10, 1 << 20} {
		eachSlowPath(min(length, 16<<10), check)
		check(repeated(`;\`, length))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		var p strings.Builder
		for range random.IntN(200) {
			p.WriteString(slowUnits[random.IntN(len(slowUnits))])
		}
		check(p.String())
	}
}

// BenchmarkSlowestPath searches for the path that takes longest at a length, and measures that.
func BenchmarkSlowestPath(b *testing.B) {
	m := newMatcher(slowMatches(b))
	var r request
	var dst []int32
	decide := func(path string) {
		r.read(&fakeAttributes{path: path})
		dst = m.appendMatches(dst[:0], &r)
	}
	for _, length := range []int{1 << 10, 8<<10 - 2, 60 << 10, 1 << 20} {
		var slowest string
		var longest time.Duration
		eachSlowPath(length, func(path string) {
			if length > PathBytesMax && longest > 0 && len(path)%97 != 0 {
				return // none of them is read
			}
			took := time.Hour
			for range 3 { // the least of three: others run beside
				began := time.Now()
				decide(path)
				took = min(took, time.Since(began))
			}
			if took > longest {
				slowest, longest = path, took
			}
		})
		b.Run(fmt.Sprintf("bytes=%d", length), func(b *testing.B) {
			b.Logf("%.80q … %.20q, %d bytes", slowest, slowest[len(slowest)-20:], len(slowest))
			for b.Loop() {
				decide(slowest)
			}
		})
	}
}

// BenchmarkLongFields measures what else is read that a client may write as long as it likes, filled with what takes longest.
func BenchmarkLongFields(b *testing.B) {
	matched := compileAll(b, []Match{{Header: []HeaderMatch{{Name: "X-Kind", Values: []string{"a", "bc*"}}}}, {Host: []string{"*.example.com"}}})
	m := newMatcher(matched)
	hops := forwarding{hops: 64}
	var p Plan
	for _, length := range []int{1 << 10, 60 << 10, 1 << 20} {
		fill := func(unit string) string { return strings.Repeat(unit, length/len(unit)) }
		a := &fakeAttributes{path: "/", headers: map[string]string{"X-Kind": fill("a,"), "Cookie": fill("a="), "X-Forwarded-For": fill("1.1.1.1,")}}
		commas, cookies, pairs, scheme, query := fill(","), fill(";"), fill("session=;"), "Basic "+fill(","), fill("&")
		hosts := &fakeAttributes{host: fill("A.")}
		for name, read := range map[string]func(){
			"header":    func() { p.request.read(a); p.matched = m.appendMatches(p.matched[:0], &p.request) },
			"commas":    func() { matched[0].headers[0].matches(commas) },
			"forwarded": func() { hops.client(a) },
			"cookie":    func() { cookieValue(cookies, "session") },
			"pairs":     func() { cookieValue(pairs, "session") },
			"bearer":    func() { bearer(scheme) },
			"query":     func() { p.queryValue(query, "key") },
			"host":      func() { p.request.read(hosts) },
		} {
			b.Run(fmt.Sprintf("%s/bytes=%d", name, length), func(b *testing.B) {
				for b.Loop() {
					read()
				}
			})
		}
	}
}
