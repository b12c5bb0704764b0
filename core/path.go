// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A path is normalised so that every spelling a server would serve as the same resource is one text:
//
//   - what precedes the path in the absolute form (http://host) and what follows "?" is cut off;
//   - it starts with "/": the empty path is "/", OPTIONS * is "/*";
//   - percent-encoded bytes are decoded, but for %2F (it never separates), %25 (or decoding twice would differ from
//     decoding once) and %3F (it starts no query). RFC 3986 promises this for unreserved bytes only, but servers look
//     "@" and "%40" up alike, and so must a rule that is not to be dodged. Bytes, not characters: overlong UTF-8 spells
//     neither "/" nor ".";
//   - "//" is collapsed, then "." and ".." are resolved, also if they were encoded, and never above the root;
//   - a "%" that starts no escape stays as it is, and nothing is decoded that would complete it to one.
//
// A trailing slash is kept (also the one that "/." and "/.." leave behind); whether it matters, the pattern says.
// Normalising is linear in the path's length, and nothing is cut off, however long the path: the front's bound on
// request headers is the bound here. The result is at most one byte longer than what went in, and normalising it again
// does not change it.

// readingSet says in which ways, beyond the plain one, servers disagree about a path.
type readingSet uint8

const (
	// readParameters drops ";" and what follows it from each segment, as servlet containers do: /api/search;x=1 is
	// /api/search, and /x/..;/api is /api. To others ";" is a letter like any.
	readParameters readingSet = 1 << iota
	// readBackslash takes "\" and %5C for "/", as servers on Windows do.
	readBackslash
	// readAuthority takes what follows two slashes at the start for a host, as programs do that resolve a target like a
	// reference in a page: //h/api is /api.
	readAuthority
	readingsAll = readParameters | readBackslash | readAuthority
)

// reading is a normalised path as some server reads it.
type reading struct {
	path   string // case kept
	folded string // without differences of case
}

// pathTraits is what one look at the bytes of a path tells.
type pathTraits struct {
	plain    bool // already normalised
	folded   bool // plain, and has no letter that folding could change
	readings readingSet
}

const (
	byteUpper     = 1 << iota // A to Z, and all that is not ASCII
	byteSpecial               // means that normalising may change the path
	byteSemicolon             // starts parameters
	byteBackslash             // may be a separator
)

var pathBytes = func() (table [256]uint8) {
	for c := range table {
		if c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf {
			table[c] = byteUpper
		}
	}
	table['%'] = byteSpecial
	table['?'] = byteSpecial
	table[';'] = byteSemicolon
	table['\\'] = byteBackslash
	return table
}()

// inspectPath looks at a path once, so that the usual one costs no more than this look.
func inspectPath(p string) pathTraits {
	if p == "" || p[0] != '/' {
		return pathTraits{readings: readingsAll &^ readAuthority}
	}
	var seen uint8
	var dots bool
	last := byte(0)
	for i := 0; i < len(p); i++ {
		c := p[i]
		seen |= pathBytes[c]
		if last == '/' && (c == '/' || c == '.') {
			dots = true
		}
		last = c
	}
	t := pathTraits{plain: seen&byteSpecial == 0 && !dots}
	t.folded = t.plain && seen&byteUpper == 0
	if seen&byteSemicolon != 0 {
		t.readings |= readParameters
	}
	if seen&byteBackslash != 0 || seen&byteSpecial != 0 && strings.Contains(p, "%5") {
		t.readings |= readBackslash
	}
	if len(p) > 1 && (p[1] == '/' || p[1] == '\\') {
		t.readings |= readAuthority
	}
	return t
}

// appendNormalized appends the path p in its normal form, read in the ways given; none is the plain reading.
func appendNormalized(dst []byte, p string, ways readingSet) []byte {
	p = trimToPath(p)
	if ways&readAuthority != 0 {
		p = trimAuthority(p)
	}
	base := len(dst)
	slash := false
	for rest, more := p, true; more; {
		var piece string
		piece, rest, more = cutSegment(rest, ways)
		start := len(dst)
		dst = append(dst, '/')
		dst = appendDecoded(dst, piece)
		slash = false
		switch string(dst[start+1:]) {
		case "", ".":
			dst, slash = dst[:start], true
		case "..":
			dst, slash = dropSegment(dst[:start], base), true
		}
	}
	if slash {
		dst = append(dst, '/')
	}
	return dst
}

// trimToPath cuts off scheme and authority, the query, and the slash that a path starts with.
func trimToPath(p string) string {
	if i := strings.IndexByte(p, '?'); i >= 0 {
		p = p[:i]
	}
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(p) < len(scheme) || !equalASCII(p[:len(scheme)], scheme) {
			continue
		}
		i := strings.IndexByte(p[len(scheme):], '/')
		if i < 0 {
			return ""
		}
		p = p[len(scheme)+i:]
		break
	}
	return strings.TrimPrefix(p, "/")
}

// trimAuthority cuts off the host that a path without its first slash starts with, if another slash precedes it. To programs
// that read a target so, a backslash is a slash, and more than two slashes are two.
func trimAuthority(p string) string {
	const slashes = `/\`
	rest := strings.TrimLeft(p, slashes)
	if len(rest) == len(p) {
		return p
	}
	end := strings.IndexAny(rest, slashes)
	if end < 0 {
		return ""
	}
	return strings.TrimLeft(rest[end:], slashes)
}

// cutSegment splits a path, still encoded, after its first segment.
func cutSegment(p string, ways readingSet) (piece, rest string, more bool) {
	end, width := len(p), 0
	for i := 0; i < len(p) && width == 0; i++ {
		switch {
		case p[i] == '/', p[i] == '\\' && ways&readBackslash != 0:
			end, width = i, 1
		case p[i] == '%' && ways&readBackslash != 0 && i+2 < len(p) && p[i+1] == '5' && p[i+2]|0x20 == 'c':
			end, width = i, 3
		}
	}
	piece, rest, more = p[:end], p[end+width:], width > 0
	if ways&readParameters != 0 {
		if i := strings.IndexByte(piece, ';'); i >= 0 {
			piece = piece[:i]
		}
	}
	return piece, rest, more
}

// dropSegment takes the last segment off what was normalised so far, which starts at base.
func dropSegment(dst []byte, base int) []byte {
	for i := len(dst) - 1; i >= base; i-- {
		if dst[i] == '/' {
			return dst[:i]
		}
	}
	return dst[:base]
}

// appendDecoded appends the bytes that a piece of a path spells. What stays encoded gets upper case digits.
func appendDecoded(dst []byte, s string) []byte {
	stray := -3 // where a "%" was appended that starts no escape
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '%' {
			dst = append(dst, c)
			continue
		}
		b, ok := unescape(s, i)
		if !ok {
			stray = len(dst)
			dst = append(dst, c)
			continue
		}
		i += 2
		completes := isHex(b) && (len(dst)-stray == 1 || len(dst)-stray == 2 && isHex(dst[stray+1]))
		if b == '/' || b == '%' || b == '?' || completes {
			dst = append(dst, '%', upperHex[b>>4], upperHex[b&15])
		} else {
			dst = append(dst, b)
		}
	}
	return dst
}

const upperHex = "0123456789ABCDEF"

// unescape returns the byte that the escape at s[i] stands for.
func unescape(s string, i int) (b byte, ok bool) {
	if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
		return 0, false
	}
	return hexDigit(s[i+1])<<4 | hexDigit(s[i+2]), true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func hexDigit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// appendFolded appends s so that two texts that differ in the case of letters only become one. Bytes that are not UTF-8
// stay as they are. Letters composed in different ways stay different.
func appendFolded(dst []byte, s string) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			dst = append(dst, lowerByte(c))
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size <= 1 {
			dst = append(dst, c)
		} else {
			dst = utf8.AppendRune(dst, foldRune(r))
		}
		i += size
	}
	return dst
}

// foldRune returns one and the same rune for all that differ in case only.
func foldRune(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	if least < utf8.RuneSelf {
		return rune(lowerByte(byte(least)))
	}
	return least
}

func lowerByte(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c | 0x20
	}
	return c
}

func upperByte(c byte) byte {
	if c >= 'a' && c <= 'z' {
		return c &^ 0x20
	}
	return c
}
