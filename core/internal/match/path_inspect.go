// SPDX-License-Identifier: Apache-2.0

package match

import (
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core/slim"
)

// byteClass is a set of classes of bytes. A scan collects the classes of all bytes of a text
// without a branch for each of them.
type byteClass uint16

// neverDecoded are the classes of bytes that stay encoded in every reading.
const neverDecoded = byteSlash | byteEscape | byteQuery

const (
	byteUpper      byteClass = 1 << iota // A to Z
	byteBeyond                           // above ASCII
	byteEscape                           // starts an escape
	byteQuery                            // starts the query
	byteSemicolon                        // starts parameters
	byteBackslash                        // separates segments for some servers
	byteColon                            // separates a host from its port
	byteDot                              // "."
	byteDotPair                          // for a pair of bytes: ".."
	byteSlash                            // "/"
	byteAfterSlash                       // for a pair of bytes: "//" or "/."
)

var byteClasses = func() (table [256]byteClass) {
	for c := range table {
		switch {
		case c >= 'A' && c <= 'Z':
			table[c] = byteUpper
		case c >= utf8.RuneSelf:
			table[c] = byteBeyond
		}
	}
	table['%'] = byteEscape
	table['?'] = byteQuery
	table[';'] = byteSemicolon
	table['\\'] = byteBackslash
	table[':'] = byteColon
	table['.'] = byteDot | byteDotPair | byteAfterSlash
	table['/'] = byteSlash | byteAfterSlash
	return table
}()

// scan returns the classes of the bytes of a text and, as the result pairs, the classes of pairs of
// adjacent bytes. The second byte of a pair has the pair's class, and the first byte has the class
// one bit below it.
func scan(text string) (seen, pairs byteClass) {
	last := byteClass(0)
	for i := 0; i < len(text); i++ {
		class := byteClasses[text[i]]
		seen |= class
		pairs |= class & (last << 1)
		last = class
	}
	return seen, pairs & (byteDotPair | byteAfterSlash)
}

// inspectPath scans a path once. A path in normal form costs no more than this scan.
func inspectPath(p string) pathTraits {
	seen, pairs := scan(p)
	rooted := p != "" && p[0] == '/'
	var t pathTraits
	t.plain = rooted && seen&(byteEscape|byteQuery) == 0 && pairs&byteAfterSlash == 0
	t.folded = t.plain && seen&(byteUpper|byteBeyond) == 0
	if seen&(byteEscape|byteSemicolon|byteBackslash) != 0 || pairs != 0 {
		t.findReadings(p, seen, pairs)
	}
	return t
}

// findReadings determines the ways in which servers read a path, from the classes of its bytes.
func (t *pathTraits) findReadings(p string, seen, pairs byteClass) {
	escapedDot := seen&byteEscape != 0 && t.countEscapes(p)
	climbs := escapedDot || pairs&byteDotPair != 0 // the path may have a segment ".."
	if seen&byteBackslash != 0 {
		t.backslashes = strings.Count(p, `\`)
	}
	if seen&byteSemicolon != 0 {
		t.readings |= readParameters
	}
	if t.backslashes+t.escapedBackslashes > 0 {
		t.readings |= readBackslash
	}
	if p != "" && p[0] == '/' && separatorAt(p, 1) {
		t.readings |= readAuthority
	}
	if t.escapedSlashes > 0 {
		t.readings |= readEncodedSlash
	}
	if t.escapedSemicolons > 0 {
		t.readings |= readEncodedParameters
	}
	const separators = readBackslash | readEncodedSlash | readParameters | readEncodedParameters
	// the path may have empty segments
	if climbs && (pairs&byteAfterSlash != 0 || t.readings&separators != 0) {
		t.readings |= readEmptySegments
	}
	dots := seen&byteDot != 0 && hasDotSegment(p)
	t.mixesDots = dots && escapedDot
	if dots || escapedDot {
		t.readings |= readDots
	}
}

// separatorAt reports whether p[i:] begins with a byte that some servers read as "/", escaped or
// not.
func separatorAt(p string, i int) bool {
	if i >= len(p) {
		return false
	}
	b := p[i]
	if b == '%' {
		b, _ = slim.Unescape(p, i)
	}
	return b == '/' || b == '\\'
}

// hasDotSegment reports whether a path may have a segment "." or "..". Escaped dots do not count.
func hasDotSegment(p string) bool {
	for i := 1; i < len(p); i++ {
		if p[i] != '.' || p[i-1] != '/' && p[i-1] != '\\' && (i < 3 || p[i-3] != '%' || !separatorAt(p, i-3)) {
			continue
		}
		end := i + 1
		if end < len(p) && p[end] == '.' {
			end++
		}
		if end == len(p) || strings.IndexByte(`/\;?%`, p[end]) >= 0 {
			return true
		}
	}
	return false
}

// countEscapes counts the escapes of bytes that servers disagree about. countEscapes reports
// whether the path has an escaped ".".
func (t *pathTraits) countEscapes(p string) (dot bool) {
	for i := 0; i+2 < len(p); i++ {
		if p[i] != '%' {
			continue
		}
		switch uint16(p[i+1])<<8 | uint16(p[i+2]|0x20) { // in lower case
		case '2'<<8 | 'e':
			dot = true
		case '2'<<8 | 'f':
			t.escapedSlashes++
		case '3'<<8 | 'b':
			t.escapedSemicolons++
		case '5'<<8 | 'c':
			t.escapedBackslashes++
		default:
			continue
		}
		i += 2
	}
	return dot
}
