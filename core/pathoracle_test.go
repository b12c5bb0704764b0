// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// plainlyNormalized is the normal form, one segment after the other and as slow as that is.
func plainlyNormalized(p string, ways readingSet) string {
	var segments []string
	rest, slash := trimToPath(p), false
	if ways&readAuthority != 0 { // an escaped backslash ends a host as well
		rest = trimAuthority(strings.NewReplacer("%5C", "\\", "%5c", "\\").Replace(rest))
	}
	for more := true; more; {
		var piece string
		piece, rest, more = cutEncoded(rest, ways)
		piece, _, cut := strings.Cut(piece, ";")
		if cut && ways&readParameters == 0 {
			panic("not reached") // cutEncoded escapes it
		}
		decoded := string(appendDecoded(nil, piece, false))
		slash = false
		switch decoded {
		case "", ".":
			slash = true
		case "..":
			segments, slash = segments[:max(0, len(segments)-1)], true
		default:
			segments = append(segments, decoded)
		}
	}
	if slash {
		segments = append(segments, "")
	}
	return "/" + strings.Join(segments, "/")
}

// cutEncoded splits a path, still encoded, after its first segment. Where ";" is a letter like any it escapes it.
func cutEncoded(p string, ways readingSet) (piece, rest string, more bool) {
	end, width := len(p), 0
	for i := 0; i < len(p) && width == 0; i++ {
		switch {
		case p[i] == '/', p[i] == '\\' && ways&readBackslash != 0:
			end, width = i, 1
		case ways&readBackslash != 0 && i+2 < len(p) && strings.EqualFold(p[i:i+3], "%5c"):
			end, width = i, 3
		}
	}
	piece = p[:end]
	if ways&readParameters == 0 {
		piece = strings.ReplaceAll(piece, ";", "%3B")
	}
	return piece, p[end+width:], width > 0
}

// sameReadings compares the readings of a path with those that are plainly made.
func sameReadings(t *testing.T, p string) {
	t.Helper()
	var r request
	r.read(&fakeAttributes{path: p})
	if r.long {
		return
	}
	want := []string{plainlyNormalized(p, 0)}
	for ways := readingSet(1); ways <= readingsAll; ways++ {
		if inspectPath(p).readings&ways == ways {
			want = withText(want, plainlyNormalized(p, ways))
		}
	}
	if len(want) != len(r.readings) {
		t.Fatalf("%q has the readings %q, want %q", p, r.readings, want)
	}
	for i, text := range want {
		if got := r.readings[i]; got.path != text || got.folded != string(appendFolded(nil, text)) {
			t.Fatalf("%q is read as %q, want %q", p, got, text)
		}
	}
}

// TestReadingsAreTheOracles makes paths of all that means something in one.
func TestReadingsAreTheOracles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	parts := []string{"/", "/", "\\", ";", ".", "..", "a", "B", "é", "É", "\u212a", "\xc3", "\xff", "%", "%2", "%2e", "%2F", "%5C",
		"%5c", "%3B", "%3b", "%25", "%3F", "%41", "%C3%89", "%80", "5", "C", "3", "b", "?", "x=1"}
	for range 200_000 {
		var p strings.Builder
		if random.IntN(8) > 0 {
			p.WriteByte('/')
		}
		for range random.IntN(12) {
			p.WriteString(parts[random.IntN(len(parts))])
		}
		sameReadings(t, p.String())
	}
}
