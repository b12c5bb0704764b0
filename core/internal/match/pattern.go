// SPDX-License-Identifier: Apache-2.0

package match

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core/slim"
)

// Bounds of one path pattern. The bounds keep the work of matching linear in the path's length.
// Real paths do not need longer patterns.
const (
	PatternBytesMax     = 1024
	PatternSegmentsMax  = 64
	PatternWildcardsMax = 8
)

// segmentKind is the kind of a pattern's segment. More specific kinds come first.
type segmentKind uint8

const (
	segmentLiteral segmentKind = iota // this segment
	segmentPrefix                     // a prefix; segmentMany follows and ends the pattern
	segmentOne                        // any one segment
	segmentMany                       // any number of segments, including none
)

// segment is the part of a pattern between two slashes.
type segment struct {
	kind segmentKind
	// of a literal or a prefix: the text as appendDecoded decodes it, folded unless the pattern is
	// case-sensitive
	text string
}

// slashRule selects how a pattern treats a slash at the end of a path.
type slashRule uint8

const (
	slashAny slashRule = iota
	slashNo
	slashYes
)

// pattern is one compiled path pattern. A pattern is immutable.
type pattern struct {
	segments      []segment
	caseSensitive bool
	slash         slashRule
	text          string // the canonical spelling, ASCII; parses to the same pattern
}

// pattern.everything reports whether the pattern matches every path.
func (p *pattern) everything() bool {
	return len(p.segments) == 1 && p.segments[0].kind == segmentMany && p.slash == slashAny
}

// pattern.matches reports whether the pattern matches the reading. The work is at most the
// product of the lengths of pattern and path, because only the last ** is ever retried.
func (p *pattern) matches(r *pathReading) bool {
	path := r.folded
	if p.caseSensitive {
		path = r.path
	}
	if p.slash != slashAny && (path[len(path)-1] == '/') != (p.slash == slashYes) {
		return false
	}
	at, next := 0, 0 // positions in the path and in the segments
	// where to resume when a try after the last ** fails; retryNext is 0 without a **
	retryAt, retryNext := 0, 0
	for {
		if next < len(p.segments) && p.segments[next].kind == segmentMany {
			next++
			if next == len(p.segments) {
				return true
			}
			retryAt, retryNext = at, next
			continue
		}
		if pathEnds(path, at) {
			return next == len(p.segments)
		}
		text, after := segmentAt(path, at)
		if next < len(p.segments) && p.segments[next].matches(text) {
			at, next = after, next+1
			continue
		}
		if retryNext == 0 {
			return false
		}
		_, retryAt = segmentAt(path, retryAt)
		at, next = retryAt, retryNext
	}
}

// pathEnds reports whether a normalized path has no further segment from the given offset on.
func pathEnds(path string, at int) bool { return len(path)-at <= 1 }

// segmentAt returns the segment after the slash at the given offset of a normalized path, and the
// offset of the next slash.
func segmentAt(path string, at int) (text string, after int) {
	rest := path[at+1:]
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return rest[:i], at + 1 + i
	}
	return rest, len(path)
}

func (s *segment) matches(text string) bool {
	switch s.kind {
	case segmentLiteral:
		return s.text == text
	case segmentPrefix:
		return strings.HasPrefix(text, s.text)
	default:
		return true
	}
}

// compareSpecific orders patterns from more to less specific, by the first segment in which they
// differ in kind.
func compareSpecific(a, b *pattern) int {
	for i := range min(len(a.segments), len(b.segments)) {
		x, y := &a.segments[i], &b.segments[i]
		if x.kind != y.kind {
			return cmp.Compare(x.kind, y.kind)
		}
		if x.kind == segmentPrefix && len(x.text) != len(y.text) {
			return cmp.Compare(len(y.text), len(x.text))
		}
	}
	switch n := len(b.segments); {
	case len(a.segments) == n:
		return 0
	case len(a.segments) < n && b.segments[len(a.segments)].kind == segmentMany:
		return -1
	case len(a.segments) < n:
		return 1
	default:
		return -compareSpecific(b, a)
	}
}

// ParsePattern compiles a path pattern. If why is not empty, it describes the error in the pattern.
func ParsePattern(text string, caseSensitive, strictSlash bool) (p pattern, why, remedy string) {
	if why, remedy = checkPatternText(text); why != "" {
		return p, why, remedy
	}
	p.caseSensitive = caseSensitive
	pieces := slim.Split(text[1:], "/")
	slash := pieces[len(pieces)-1] == ""
	if slash {
		pieces = pieces[:len(pieces)-1]
	}
	wildcards := 0
	for i, piece := range pieces {
		s, why, remedy := parseSegment(piece, i == len(pieces)-1 && !slash)
		if why != "" {
			return p, why, remedy
		}
		if s.kind != segmentLiteral {
			wildcards++
		}
		p.addSegment(s)
	}
	switch {
	case len(p.segments) > PatternSegmentsMax:
		return p, "has more than 64 segments", "end it earlier, with /*"
	case wildcards > PatternWildcardsMax:
		return p, "has more than 8 wildcards", "end it earlier, with /*"
	}
	p.finish(slash, strictSlash)
	return p, "", ""
}

// addSegment appends a segment. addSegment ignores a ** after another **.
func (p *pattern) addSegment(s segment) {
	if n := len(p.segments); s.kind == segmentMany && n > 0 && p.segments[n-1].kind == segmentMany {
		return
	}
	p.segments = append(p.segments, s)
	if s.kind == segmentPrefix {
		p.segments = append(p.segments, segment{kind: segmentMany})
	}
}

// pattern.finish sets the rule for a trailing slash, writes the canonical spelling and folds the
// texts.
func (p *pattern) finish(slash, strictSlash bool) {
	open := len(p.segments) > 0 && p.segments[len(p.segments)-1].kind == segmentMany
	switch {
	case !strictSlash || open && !slash:
		p.slash = slashAny
	case slash:
		p.slash = slashYes
	default:
		p.slash = slashNo
	}
	p.text = p.spell()
	if p.caseSensitive {
		return
	}
	for i := range p.segments {
		p.segments[i].text = string(appendFolded(nil, p.segments[i].text))
	}
}

// pattern.spell returns the canonical spelling of the pattern.
func (p *pattern) spell() string {
	var b []byte
	for i, s := range p.segments {
		last := i == len(p.segments)-1
		switch {
		case s.kind == segmentMany && last && i > 0 && p.segments[i-1].kind == segmentPrefix:
			continue
		case s.kind == segmentMany && !last, s.kind == segmentMany && p.slash == slashYes:
			b = append(b, "/**"...)
		case s.kind == segmentMany:
			b = append(b, "/*"...)
		case s.kind == segmentOne && last:
			b = append(b, "/*/"...) // without the slash, the pattern would match any continuation
		case s.kind == segmentOne:
			b = append(b, "/*"...)
		case s.kind == segmentPrefix:
			b = append(appendEncoded(append(b, '/'), s.text), '*')
		default:
			b = appendEncoded(append(b, '/'), s.text)
		}
	}
	if len(b) == 0 || p.slash == slashYes && b[len(b)-1] != '/' {
		b = append(b, '/')
	}
	return string(b)
}

// appendEncoded appends a decoded segment in the ASCII spelling of a pattern.
func appendEncoded(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte("*\\#\"<>[]^`{|}", c) >= 0 {
			dst = append(dst, '%', slim.UpperHex[c>>4], slim.UpperHex[c&15])
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// checkPatternText describes an error in the pattern as a whole.
func checkPatternText(text string) (why, remedy string) {
	switch {
	case text == "":
		return "is empty", "leave it out to match every path"
	case len(text) > PatternBytesMax:
		return "is longer than 1024 bytes", "end it earlier, with *"
	case text[0] != '/':
		return `does not start with "/"`, `write it from the root of the site, such as "/api/*"`
	case strings.Contains(text, "//"):
		return `has an empty segment`, `write one "/": request paths are compared with "//" collapsed`
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '?':
			return "holds a query", "write the path only: queries are not compared"
		case c == '#':
			return "holds a fragment", `write %23 for a "#" that is part of the path`
		case c == '\\':
			return "holds a backslash", `write "/" between segments, or %5C for a backslash that is part of one`
		case c == ' ':
			return "holds a space", "write %20 for a space that is part of the path"
		case c < ' ' || c == 0x7f:
			return "holds a control character", "leave it out"
		case c == '%':
			if _, ok := slim.Unescape(text, i); !ok {
				return "holds a % that two hexadecimal digits do not follow", "write %25 for a percent sign"
			}
		}
	}
	return "", ""
}

// parseSegment compiles the text between two slashes. The argument last reports that nothing
// follows, not even a slash.
func parseSegment(piece string, last bool) (s segment, why, remedy string) {
	switch {
	case piece == "**", piece == "*" && last:
		return segment{kind: segmentMany}, "", ""
	case piece == "*":
		return segment{kind: segmentOne}, "", ""
	}
	text, star := piece, strings.IndexByte(piece, '*')
	switch {
	case star < 0:
	case strings.Contains(piece, "**"):
		return s, `has more than a "**" between two slashes`, `write /**/ for any number of segments`
	case star < len(piece)-1 || !last:
		return s, `has a "*" within a segment`, `write * for a whole segment, or end the pattern with it; %2A is a star in the path`
	default:
		s.kind, text = segmentPrefix, piece[:star]
	}
	decoded, _ := appendDecoded(nil, text, neverDecoded)
	s.text = string(decoded)
	switch {
	case s.kind == segmentLiteral && (s.text == "." || s.text == ".."):
		return s, `has a "." or ".." segment`, "write the path that it leads to: request paths are compared with dots resolved"
	case !utf8.ValidString(s.text):
		return s, "is not UTF-8", "write * for the segment"
	case strings.ContainsFunc(s.text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return s, "holds a control character", "leave it out"
	}
	return s, "", ""
}
