// SPDX-License-Identifier: Apache-2.0

package match

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/test/request"
	"github.com/penstock/penstock/internal/test/seed"
)

// plainNormalize is a slow and simple normalization of a path without its first slash, one segment
// at a time.
func plainNormalize(rest string, ways readingSet) string {
	var segments []string
	slash := false
	if ways&readEncodedSlash != 0 {
		rest = strings.NewReplacer("%2F", "/", "%2f", "/").Replace(rest)
	}
	if ways&readBackslash != 0 { // a backslash also ends a host
		rest = strings.NewReplacer("%5C", "/", "%5c", "/", "\\", "/").Replace(rest)
	}
	if ways&readAuthority != 0 {
		rest = trimAuthority(rest)
	}
	if ways&readEncodedParameters != 0 {
		rest = strings.NewReplacer("%3B", ";", "%3b", ";").Replace(rest)
		ways |= readParameters
	}
	for more := true; more; {
		var piece string
		piece, rest, more = cutEncoded(rest, ways)
		piece, _, cut := strings.Cut(piece, ";")
		if cut && ways&readParameters == 0 {
			panic("not reached") // cutEncoded escapes it
		}
		decoded := decodedText(piece)
		slash = false
		if ways&readDots != 0 && decoded != "" {
			segments = append(segments, decoded)
			continue
		}
		switch decoded {
		case "", ".":
			slash = true
			if decoded == "" && more && ways&readEmptySegments != 0 {
				segments, slash = append(segments, ""), false
			}
		case "..":
			segments, slash = segments[:max(0, len(segments)-1)], true
		default:
			segments = append(segments, decoded)
		}
	}
	segments = slices.DeleteFunc(segments, func(s string) bool { return s == "" })
	if slash {
		segments = append(segments, "")
	}
	return "/" + strings.Join(segments, "/")
}

// cutEncoded cuts an encoded path after its first segment. If ";" has no special meaning,
// cutEncoded escapes it.
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

// sameReadings compares the readings of a path with those of the simple implementation: of the path
// as sent, and of the path without the parts that some servers drop.
func sameReadings(t *testing.T, p string) {
	t.Helper()
	var r Request
	r.Read(&request.Attributes{PathText: p})
	if r.Long {
		return
	}
	want := allReadings(nil, p, trimToPath(p))
	for _, text := range shortened(trimToPath(p)) {
		want = allReadings(want, "/"+text, text)
	}
	if len(want) != len(r.Readings) {
		t.Fatalf("%q has the readings %+v, want %q", p, r.Readings, want)
	}
	for _, got := range r.Readings {
		if !slices.Contains(want, got.path) || got.folded != string(appendFolded(nil, got.path)) {
			t.Fatalf("%q is read as %+v, want one of %q", p, got, want)
		}
	}
	if r.Readings[0].path != want[0] {
		t.Fatalf("%q is read as %q first, want %q", p, r.Readings[0].path, want[0])
	}
}

// allReadings appends the readings of the path p and of each form of p that readAll reads, too. The
// argument sent is p without its first slash.
func allReadings(want []string, p, sent string) []string {
	possible := inspectPath(p).readings
	want = plainReadings(want, sent, possible)
	if possible&(readBackslash|readEncodedSlash) != 0 {
		slashes := strings.ReplaceAll(sent, `\`, "/")
		want = plainReadings(want, slashes, possible)
		if possible&readAuthority != 0 {
			want = plainReadings(want, trimAuthority(slashes), possible&^readAuthority)
		}
	}
	if possible&(readBackslash|readEncodedSlash) != 0 && possible&readParameters != 0 {
		segments := strings.Split(sent, "/")
		for i, segment := range segments {
			segments[i], _, _ = strings.Cut(segment, ";")
		}
		want = plainReadings(want, strings.Join(segments, "/"), possible&^readParameters)
	}
	if strings.Contains(strings.ToLower(p), "%2e") && hasDotSegment(p) {
		want = plainReadings(want, withoutDots(sent), possible)
	}
	if possible&readBackslash != 0 && possible&readDots != 0 && strings.Contains(strings.ReplaceAll(strings.ToLower(p), "%5c", `\`), `/\`) {
		for _, first := range want {
			if strings.HasPrefix(first, `/\`) {
				want = plainReadings(want, trimAuthority(strings.ReplaceAll(first[1:], `\`, "/")), 0)
			}
		}
	}
	return want
}

// The expression semicolons matches a semicolon, escaped or not.
var semicolons = regexp.MustCompile(`;|%3[Bb]`)

// shortened returns what remains of a path as it was sent, for each combination of the
// parts that servers drop.
func shortened(sent string) (texts []string) {
	for _, valid := range []string{sent, withoutInvalid(sent)} {
		raw, _, _ := strings.Cut(valid, ";")
		first := valid
		if at := semicolons.FindStringIndex(valid); at != nil {
			first = valid[:at[0]]
		}
		for _, text := range []string{valid, raw, first} {
			if text != sent {
				texts = append(texts, text)
			}
			if n := len(text) - 3; n >= 0 && strings.EqualFold(text[n:], "%0a") {
				texts = append(texts, text[:n])
			}
		}
	}
	return texts
}

// withoutInvalid returns a path as it was sent, without the bytes that are not UTF-8, escaped or
// not.
func withoutInvalid(sent string) string {
	var texts []string
	var decoded []byte
	for i := 0; i < len(sent); {
		text, b := sent[i:i+1], sent[i]
		if i+3 <= len(sent) && b == '%' {
			if escaped, err := strconv.ParseUint(sent[i+1:i+3], 16, 8); err == nil {
				text, b = sent[i:i+3], byte(escaped)
			}
		}
		texts, decoded = append(texts, text), append(decoded, b)
		i += len(text)
	}
	var out strings.Builder
	for i := 0; i < len(decoded); {
		r, size := utf8.DecodeRune(decoded[i:])
		if r != utf8.RuneError || size > 1 {
			out.WriteString(strings.Join(texts[i:i+size], ""))
		}
		i += size
	}
	return out.String()
}

// withoutDots resolves the dot segments of a path as it was sent, without its first slash.
func withoutDots(sent string) string {
	var segments []string
	last := ""
	for segment := range strings.SplitSeq(sent, "/") {
		switch last = segment; segment {
		case "", ".":
		case "..":
			segments = segments[:max(0, len(segments)-1)]
		default:
			segments = append(segments, segment)
		}
	}
	if last == "" || last == "." || last == ".." {
		segments = append(segments, "")
	}
	return strings.Join(segments, "/")
}

// plainReadings appends the readings of a path as it was sent.
func plainReadings(all []string, sent string, possible readingSet) []string {
	for ways := readingSet(0); ways <= readingsAll; ways++ {
		if ways&^possible == 0 {
			if text := plainNormalize(sent, ways); !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return all
}

// TestReadingsAreTheOracles compares the readings of random paths, made of all elements with a
// special meaning, with those of the simple implementation.
func TestReadingsAreTheOracles(t *testing.T) {
	random := seed.Random(t)
	parts := []string{"/", "/", "\\", ";", ".", "..", "a", "B", "é", "É", "\u212a", "\xc3", "\xff", "%", "%2", "%2e", "%2F", "%5C",
		"%5c", "%3B", "%3b", "%25", "%3F", "%41", "%C3%89", "%80", "%0A", "%0a", "\xe2\x82", "%AC", "5", "C", "3", "b", "?", "x=1"}
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
