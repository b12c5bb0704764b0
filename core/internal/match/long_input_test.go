// SPDX-License-Identifier: Apache-2.0

package match

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/request"
	"github.com/penstock/penstock/internal/test/seed"
)

// slowUnits are the pieces of which the tests build paths that are slow to read. Each piece has a
// meaning for normalization, for case folding or for patterns.
var slowUnits = []string{"/", `\`, ";", "a", "A", ".", "..", "/a", `\a`, "%61", "%2e", "%5C", "%3B", "%25", "%4", "%", "\u00c9", "\u212a",
	"\u1e9e", "\xff", "/a/b", "a/../", "/x.", "%2F", "%C3%89"}

// slowMatches returns patterns of which a single path can match many parts at once, so matching
// takes long.
func slowMatches(t testing.TB) []Condition {
	return compileAll(t, []policy.Match{{Path: []string{"/**/a/**/b/**/c"}}, {Path: []string{"/**/a/a/b", "/**/*/a/*/b/x"}},
		{Path: []string{"/api/*"}}, {Path: []string{"/**/A/**/z"}, CaseSensitive: true}, {Path: []string{"/**/admin", "/**/a*"}}})
}

// repeatUnit returns a path that repeats the unit up to a length.
func repeatUnit(unit string, length int) string {
	return "/" + strings.Repeat(unit, max(0, length)/len(unit))
}

// eachSlowPath calls do with paths of the given length. They repeat each unit, each pair of units
// and, for short lengths, each triple of units.
func eachSlowPath(length int, do func(path string)) {
	for _, a := range slowUnits {
		do(repeatUnit(a, length))
		for _, b := range slowUnits {
			do(repeatUnit(a+b, length))
			do(repeatUnit(a, length/2) + repeatUnit(b, length/2))
			// so few separators that some of the paths are still within the bounds
			for _, separators := range []int{60, 120, 250} {
				do(repeatUnit(a, separators) + repeatUnit(b, length-separators))
			}
			for _, c := range slowUnits[:8] {
				do(repeatUnit(a+b+c, length))
			}
		}
	}
}

// workMax returns an upper bound on how many bytes Request.Read may write for a path of n bytes,
// after r has read that path. Each text that is written has at most n+1 bytes, because no letter of
// slowUnits grows when it is folded. How many texts are written depends on the number of readings
// of the path. This number is that of pathSize, which counts the readings before they are made, so
// it includes readings that turn out to be equal to others:
//
//   - Each counted reading needs at most one decoded text with the separators of that reading,
//     and one text from which parameters, dots or a host have been removed.
//   - Each reading that the request keeps has its path and its folded path.
//   - Two texts are written before the path is shortened.
//
// All counted readings together have at most PathPiecesMax segments, and each has at least one.
// They are counted for the path, and again for the shortened paths. So workMax is linear in n.
func workMax(r *Request, path string) int {
	traits := inspectPath(path)
	var size pathSize
	size.add(&traits, path)
	counted := min(size.readings, PathPiecesMax) + min(r.size.readings, PathPiecesMax)
	return (len(path) + 1) * (2*counted + 2*len(r.Readings) + 2)
}

// TestPathWorkIsLinear tests that the work done for a path is linear in its length. It counts the
// bytes written and the segments looked up.
func TestPathWorkIsLinear(t *testing.T) {
	var r Request
	check := func(path string) {
		r.size = pathSize{} // a usual path does not set it
		r.Read(&request.Attributes{PathText: path})
		if r.Long && len(path) > policy.PathBytesMax && len(r.buffer) != 0 {
			t.Fatalf("%.40q, of %d bytes, is refused after %d bytes were written", path, len(path), len(r.buffer))
		}
		segments := 0
		for _, reading := range r.Readings {
			segments += strings.Count(reading.path, "/")
		}
		if most := min(workMax(&r, path), 8*policy.PathBytesMax+64); segments > PathPiecesMax+16 || len(r.buffer) > most {
			t.Fatalf("%.40q, of %d bytes: %d bytes are written, and %d may be; %d segments are looked up", path, len(path), len(r.buffer), most, segments)
		}
	}
	// a search by mutation found the second of these paths: for each of its own bytes, 93 bytes are
	// written, more than for any other path that the search tried
	check("%25\xff\\a%2F\u1e9e;K%5C")
	check("a\u00c9\u00c9%4\u00c9%a%25a%25\u00c9%.A\u00c9%4%4\xff\u00c9a%25\u00c9%4%%4%4.\\a%2Fa%4\u00c9%4%4%4\u00c9%25%25A%\u00c9%25%%4%61;/")
	for _, length := range []int{64, 1 << 10, 2 << 10, 8<<10 - 8, 60 << 10, 1 << 20} {
		eachSlowPath(min(length, 16<<10), check)
		check(repeatUnit(`;\`, length))
	}
	random := seed.Random(t)
	for range 20_000 {
		var p strings.Builder
		for range random.IntN(200) {
			p.WriteString(slowUnits[random.IntN(len(slowUnits))])
		}
		check(p.String())
	}
}

type timedPath struct {
	text string
	took time.Duration
}

// leastTime calls do the given number of times and returns the shortest time of a call, because
// other programs on the machine slow some calls down.
func leastTime(calls int, do func()) time.Duration {
	least := time.Hour
	for range calls {
		began := time.Now()
		do()
		least = min(least, time.Since(began))
	}
	return least
}

// readPlainly parses and cleans a path as every Go server does, and folds its case.
func readPlainly(p string) string {
	u, err := url.ParseRequestURI(p)
	if err != nil {
		return p
	}
	return strings.ToLower(path.Clean(u.Path))
}

// usualPath has the form of usual paths, but is 1 KB long.
var usualPath = "/api/v1/" + strings.Repeat("items/0123456789abcdef/", 44)

// BenchmarkSlowestPath searches, for each length, for the path that takes longest to decide, and
// measures that path. For comparison, it measures usualPath as well. The benchmark also reports the
// least time, which other programs on the machine do not lengthen, and the ratio of this time to
// what Go's own packages need to parse, clean and fold the same path.
func BenchmarkSlowestPath(b *testing.B) {
	m := NewMatcher(slowMatches(b))
	var r Request
	var dst []int32
	decide := func(path string) {
		r.Read(&request.Attributes{PathText: path})
		dst = m.AppendMatches(dst[:0], &r)
	}
	measure := func(b *testing.B, path string) {
		for b.Loop() {
			decide(path)
		}
		least := leastTime(200, func() { decide(path) })
		b.ReportMetric(float64(least), "least-ns")
		b.ReportMetric(float64(least)/float64(leastTime(200, func() { readPlainly(path) })), "x-net/url")
	}
	b.Run("usual", func(b *testing.B) { measure(b, usualPath) })
	for _, length := range []int{1 << 10, 8<<10 - 2, 60 << 10, 1 << 20} {
		var paths []timedPath
		eachSlowPath(length, func(text string) {
			// paths longer than PathBytesMax are not read, so a sample of them is enough
			if length <= policy.PathBytesMax || len(paths) == 0 || len(text)%97 == 0 {
				paths = append(paths, timedPath{text, leastTime(4, func() { decide(text) })})
			}
		})
		bySlowest := func(a, b timedPath) int { return cmp.Compare(b.took, a.took) }
		slices.SortFunc(paths, bySlowest)
		// measure the slowest ones again, because other programs may have delayed some of them
		paths = paths[:min(len(paths), 100)]
		for i, one := range paths {
			paths[i].took = leastTime(50, func() { decide(one.text) })
		}
		slices.SortFunc(paths, bySlowest)
		slowest := paths[0].text
		b.Run(fmt.Sprintf("bytes=%d", length), func(b *testing.B) {
			b.Logf("%.80q … %.20q, %d bytes", slowest, slowest[len(slowest)-20:], len(slowest))
			measure(b, slowest)
		})
	}
}
