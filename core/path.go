// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"
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
// The result is at most one byte longer than what went in, and normalising it again does not change it.
//
// The work is linear in the path's length, and bounded: a path beyond PathBytesMax or pathPiecesMax is not read.

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

// Bounds of a path that is read. No browser and no usual server in front lets a longer one pass, and reading it would
// hold up the other requests of an Envoy worker.
const (
	// PathBytesMax is how long a path is at most that is read.
	PathBytesMax = 8 << 10
	// pathPiecesMax is how many pieces there may be between the slashes of a path, empty ones included, in all the ways
	// of reading it together: each is looked up in the rules' patterns.
	pathPiecesMax = 128
)

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

// appendSegments appends a decoded path without its first slash, as the servers read it that take these ways: "." and
// ".." resolved and no segment empty. An escaped ";" still stands there as "%3B" or "%3b", and is appended as ";".
func appendSegments(dst []byte, p string, ways readingSet) []byte {
	if ways&readAuthority != 0 {
		p = trimAuthority(p)
	}
	base := len(dst)
	slash := false
	for rest, more := p, true; more; {
		var piece string
		piece, rest, more = cutSegment(rest, ways)
		slash = false
		switch {
		case piece == "", piece == ".":
			slash = true
		case piece == "..":
			dst, slash = dropSegment(dst, base), true
		default:
			dst = appendSegment(dst, piece)
		}
	}
	if slash {
		dst = appendSegment(dst, "")
	}
	return dst
}

//go:noinline
func appendSegment(dst []byte, text string) []byte { return append(append(dst, '/'), text...) }

// crowdedPath reports whether the path has more pieces than are looked up.
func crowdedPath(p string, possible readingSet) bool {
	if len(p) < pathPiecesMax/8 { // in each of eight readings no more than a piece for each byte
		return false
	}
	slashes, backslashes := strings.Count(p, "/"), 0
	if p[0] != '/' {
		slashes++
	}
	if possible&readBackslash != 0 {
		backslashes = strings.Count(p, `\`) + strings.Count(p, "%5C") + strings.Count(p, "%5c")
	}
	pieces := slashes
	if possible&readBackslash != 0 {
		pieces += slashes + backslashes
	}
	if possible&readParameters != 0 {
		pieces *= 2
	}
	if possible&readAuthority != 0 {
		pieces *= 2
	}
	return pieces > pathPiecesMax
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

// cutSegment splits a decoded path after its first segment. It looks at no byte behind that, or the work would grow with
// the square of the path's length.
func cutSegment(p string, ways readingSet) (piece, rest string, more bool) {
	end := 0
	if ways&readBackslash == 0 {
		if end = strings.IndexByte(p, '/'); end < 0 {
			end = len(p)
		}
	} else {
		for end < len(p) && p[end] != '/' && p[end] != '\\' {
			end++
		}
	}
	piece = p[:end]
	if more = end < len(p); more {
		rest = p[end+1:]
	}
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

// appendDecoded appends the bytes that a path spells, or a piece of one. What stays encoded gets upper case digits.
// With keepSemicolons an escaped ";" does: unescapeSemicolons finishes that.
func appendDecoded(dst []byte, s string, keepSemicolons bool) []byte {
	dst = grown(dst, len(s)) // it never gets longer
	n := len(dst)
	out := dst[:n+len(s)]
	stray := n - 3 // where a "%" was written that starts no escape
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '%' {
			out[n] = c
			n++
			continue
		}
		b, ok := unescape(s, i)
		if !ok {
			stray = n
			out[n] = c
			n++
			continue
		}
		i += 2
		completes := isHex(b) && (n-stray == 1 || n-stray == 2 && isHex(out[stray+1]))
		if b == '/' || b == '%' || b == '?' || completes || b == ';' && keepSemicolons {
			out[n], out[n+1], out[n+2] = '%', upperHex[b>>4], upperHex[b&15]
			n += 3
		} else {
			out[n] = b
			n++
		}
	}
	return out[:n]
}

// unescapeSemicolons decodes each ";" that is still escaped in what follows mark. Nothing else is spelt so: of all the
// escapes that stay, none has these digits.
//
//go:noinline
func unescapeSemicolons(dst []byte, mark int) []byte {
	n := mark
	for i := mark; i < len(dst); i++ {
		c := dst[i]
		if c == '%' && i+2 < len(dst) && dst[i+1] == '3' && dst[i+2]|0x20 == 'b' {
			c = ';'
			i += 2
		}
		dst[n] = c
		n++
	}
	return dst[:n]
}

// grown returns dst with room for n bytes more.
//
//go:noinline
func grown(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	return append(make([]byte, 0, 2*cap(dst)+n), dst...)
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
