// SPDX-License-Identifier: Apache-2.0

package match

import (
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// A path is normalized so that all spellings that a server serves as the same resource become one
// text:
//
//   - The part before the path in the absolute form (http://host) is cut off, and so is the part
//     from "?" on.
//   - It starts with "/": the empty path is "/", OPTIONS * is "/*".
//   - Percent-encoded bytes are decoded, except %2F (see readEncodedSlash), %25 (otherwise decoding
//     twice would differ from decoding once) and %3F (it starts no query). RFC 3986 permits this
//     only for unreserved bytes, but servers treat "@" and "%40" alike, so a rule must do the same
//     or it could be evaded. Bytes are decoded, not characters, so overlong UTF-8 is neither "/"
//     nor ".".
//   - "//" is collapsed. Then "." and ".." are resolved, even if they were encoded, but never above
//     the root.
//   - A "%" that does not start an escape is left unchanged, and nothing is decoded that would turn
//     it into an escape.
//
// A trailing slash is kept, including one that results from "/." or "/..". The pattern determines
// whether that slash matters. The result is at most one byte longer than the input, and normalizing
// it again does not change it.
//
// Some servers shorten a path before they read it (see the function shorten). The shortened path is
// read in all ways, too.
//
// The work is linear in the path's length, and bounded: a path beyond policy.PathBytesMax,
// PathPiecesMax or readingBytesMax is not read.

// readingSet is a set of the ways in which some servers read a path differently from others.
type readingSet uint8

const (
	// readParameters drops ";" and the text after it from each segment, as servlet containers do.
	// So /api/search;x=1 means /api/search, and /x/..;/api means /api. For other servers ";" is an
	// ordinary character.
	readParameters readingSet = 1 << iota
	// readBackslash reads "\" and %5C as "/", as servers on Windows do.
	readBackslash
	// readAuthority reads the text after two leading slashes as a host, so //h/api means /api.
	// Programs that resolve the request target like a link on a web page do this.
	readAuthority
	// readEncodedSlash reads %2F as "/", so /admin%2Fx means /admin/x, and /x/..%2Fadmin means
	// /admin. Servers that decode a path before they route it, such as nginx, do this.
	readEncodedSlash
	// readEncodedParameters is readParameters, except that %3B begins parameters too. A proxy such
	// as nginx with a URI in proxy_pass decodes a path before it forwards it, so a servlet
	// container receives ";".
	readEncodedParameters
	// readEmptySegments keeps empty segments until "." and ".." are resolved, as RFC 3986 and the
	// URL standard do, so /admin//../x means /admin/x. Other servers collapse "//" first and
	// serve /x.
	readEmptySegments
	// readDots treats "." and ".." as ordinary names, so /admin/.. is below /admin. Express and
	// other routers that compare the beginning of a path as it was sent do this.
	readDots
	readingsAll = readDots<<1 - 1
)

// readingSet.parameters returns the number of ways to read the parameters of a path: kept, dropped,
// or dropped including escaped ones.
func (s readingSet) parameters() int {
	switch s & (readParameters | readEncodedParameters) {
	case 0:
		return 1
	case readParameters | readEncodedParameters:
		return 3
	default:
		return 2
	}
}

// readingSet.dots returns the number of ways to read dot segments: resolved, resolved among empty
// segments, or kept.
func (s readingSet) dots() int {
	n := 1
	for _, way := range [...]readingSet{readEmptySegments, readDots} {
		if s&way != 0 {
			n++
		}
	}
	return n
}

// canRead reports whether the path can be read in this combination of ways, with a result that may
// differ from that of other combinations. A reading that drops escaped parameters also drops
// unescaped ones. Empty segments matter only where dot segments are resolved. Some servers that
// read backslashes resolve dot segments. Others, such as those that use url.parse of Node.js, do
// not.
func (s readingSet) canRead(possible readingSet) bool {
	const both = readParameters | readEncodedParameters
	return s&^possible == 0 && (s&both != readEncodedParameters || possible&both != both) &&
		(s&readDots == 0 || s&readEmptySegments == 0)
}

// pathReading is a normalized path as some servers read it.
type pathReading struct {
	_ slim.Incomparable

	path   string // case kept
	folded string // with case folded
}

// pathTraits is the result of one scan of a path's bytes.
type pathTraits struct {
	plain    bool // already normalized
	folded   bool // plain, and without letters that folding could change
	readings readingSet

	mixesDots bool // it may have dot segments and escaped dots

	backslashes        int
	escapedBackslashes int
	escapedSlashes     int
	escapedSemicolons  int
}

// Bounds of a path that is read. Browsers and common proxies do not send longer paths. Reading a
// longer one would delay the other requests of an Envoy worker.
const (
	// PathPiecesMax is the greatest number of segments in all readings of a path together,
	// including empty ones. Each segment is looked up in the rules' patterns.
	PathPiecesMax = 128
	// readingBytesMax is the greatest total length of all readings of a path that has more than two
	// readings.
	readingBytesMax = policy.PathBytesMax / 2
)

// pathSize is the size of all readings of a path together.
type pathSize struct{ pieces, readings, bytes int }

// exceedsBounds reports whether the readings have too many segments or bytes.
func (s *pathSize) exceedsBounds() bool {
	return s.pieces > PathPiecesMax || s.readings > 2 && s.bytes > readingBytesMax
}

// pathSize.add adds the segments and bytes of all readings of the path p, whose traits are t.
//
//go:noinline
func (s *pathSize) add(t *pathTraits, p string) {
	slashes := strings.Count(p, "/")
	if p == "" || p[0] != '/' {
		slashes++
	}
	dots := t.readings.dots()
	pieces, readings := dots*slashes, dots
	if t.readings&readBackslash != 0 {
		pieces, readings = pieces+dots*(slashes+t.backslashes+t.escapedBackslashes), readings+dots
	}
	if t.readings&readEncodedSlash != 0 {
		pieces += pieces + readings*t.escapedSlashes
		readings *= 2
	}
	semicolons := 2 * readings * t.escapedSemicolons // each semicolon is replaced in each reading
	if n := t.readings.parameters(); n > 1 {
		if t.mixesParameters() { // the path is read again without the parameters
			n += n - 1
			semicolons *= 2
		}
		pieces, readings = n*pieces, n*readings
	}
	if t.readings&readAuthority != 0 {
		pieces, readings = 2*pieces, 2*readings
	}
	paths := t.paths(p)
	s.pieces += paths * (pieces + semicolons)
	s.readings += paths * readings
	s.bytes += paths * readings * len(p)
}

// mixesParameters reports whether parameters can contain separators that only some servers
// recognize.
func (t *pathTraits) mixesParameters() bool {
	return t.readings&readParameters != 0 && t.readings&(readBackslash|readEncodedSlash) != 0
}

// pathTraits.paths returns how many variants of the path are read in all ways: the path as it was
// sent, and the path as readBeforeDecoding, readWithoutDots and readForwarded change it.
func (t *pathTraits) paths(p string) int {
	n := 1
	if t.escapedBackslashes+t.escapedSlashes > 0 {
		if t.backslashes > 0 {
			n++
		}
		if t.readings&readAuthority != 0 {
			n++
		}
	}
	if t.mixesDots {
		n++
	}
	if t.mayBeginWithBackslash(p) {
		n *= 2
	}
	return n
}

// mayBeginWithBackslash reports whether the path might begin with a backslash after its dot
// segments are resolved.
func (t *pathTraits) mayBeginWithBackslash(p string) bool {
	return t.readings&readBackslash != 0 && t.readings&readDots != 0 &&
		(strings.Contains(p, `/\`) || strings.Contains(p, "/%5C") || strings.Contains(p, "/%5c"))
}

// appendSegments appends a decoded path without its first slash. appendSegments drops empty
// segments, and it resolves "." and ".." unless the reading keeps them. If semicolon is not empty,
// it is an escaped spelling of ";", which appendSegments decodes.
func appendSegments(dst []byte, p string, ways readingSet, semicolon string) []byte {
	base := len(dst)
	parameters := ways&(readParameters|readEncodedParameters) != 0
	slash, empty, resolves := false, false, ways&readDots == 0
	for at, end := 0, 0; at <= len(p); at = end + 1 {
		if end = strings.IndexByte(p[at:], '/'); end >= 0 {
			end += at
		} else {
			end = len(p)
		}
		piece := p[at:end]
		if parameters {
			piece = withoutParameters(piece, ways, semicolon)
		}
		slash = false
		switch {
		case piece == "" && end < len(p) && ways&readEmptySegments != 0:
			dst, empty = appendSegment(dst, ""), true
		case piece == "", piece == "." && resolves:
			slash = true
		case piece == ".." && resolves:
			dst, slash = dropSegment(dst, base), true
		case semicolon != "":
			dst = appendReplaced(append(dst, '/'), piece, semicolon, ';')
		default:
			dst = appendSegment(dst, piece)
		}
	}
	if slash {
		dst = appendSegment(dst, "")
	}
	if empty {
		dst = withoutEmpty(dst, base)
	}
	return dst
}

// withoutParameters returns a segment without its parameters.
func withoutParameters(piece string, ways readingSet, semicolon string) string {
	piece, _, _ = strings.Cut(piece, ";")
	if ways&readEncodedParameters != 0 && semicolon != "" {
		piece, _, _ = strings.Cut(piece, semicolon)
	}
	return piece
}

// appendWithoutParameters appends a path as it was sent, without the parameters of its segments.
//
//go:noinline
func appendWithoutParameters(dst []byte, sent string) []byte {
	dropping := false
	for i := 0; i < len(sent); i++ {
		c := sent[i]
		if dropping = c != '/' && (dropping || c == ';'); !dropping {
			dst = append(dst, c)
		}
	}
	return dst
}

// withoutEmpty removes the empty segments except the last from the path that starts at base.
//
//go:noinline
func withoutEmpty(dst []byte, base int) []byte {
	out := dst[:base]
	for i := base; i < len(dst); i++ {
		if dst[i] != '/' || i+1 == len(dst) || dst[i+1] != '/' {
			out = append(out, dst[i])
		}
	}
	return out
}

func appendSegment(dst []byte, text string) []byte { return append(append(dst, '/'), text...) }

// appendReplaced appends s with each occurrence of the text named old replaced by the byte named
// other. The replaced text has one byte or three.
//
//go:noinline
func appendReplaced(dst []byte, s, old string, other byte) []byte {
	dst = growBytes(dst, len(s)) // the result is never longer than s
	n := len(dst)
	out := dst[:n+len(s)]
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == old[0] && (len(old) == 1 || i+2 < len(s) && s[i+1] == old[1] && s[i+2] == old[2]) {
			c = other
			i += len(old) - 1
		}
		out[n] = c
		n++
	}
	return out[:n]
}

// trimToPath cuts off scheme and authority, the query, and the first slash of the path.
func trimToPath(p string) string {
	if i := strings.IndexByte(p, '?'); i >= 0 {
		p = p[:i]
	}
	for _, scheme := range [...]string{"http://", "https://"} {
		if len(p) < len(scheme) || !slim.EqualASCII(p[:len(scheme)], scheme) {
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

// trimAuthority cuts off the host at the start of a path without its first slash, if another slash
// precedes the host. More than two slashes count as two. A backslash counts as part of the host,
// because in readings that treat it as a slash it has already been replaced.
func trimAuthority(p string) string {
	rest := slim.TrimLeft(p, "/")
	if len(rest) == len(p) {
		return p
	}
	end := strings.IndexByte(rest, '/')
	if end < 0 {
		return ""
	}
	return slim.TrimLeft(rest[end:], "/")
}

// dropSegment removes the last segment of the path that starts at base.
func dropSegment(dst []byte, base int) []byte {
	for i := len(dst) - 1; i >= base; i-- {
		if dst[i] == '/' {
			return dst[:i]
		}
	}
	return dst[:base]
}

// appendDecoded appends the decoded bytes of a path or segment, and returns their classes. Bytes of
// the classes in the argument kept remain encoded, with upper case digits.
func appendDecoded(dst []byte, s string, kept byteClass) (decoded []byte, seen byteClass) {
	dst = growBytes(dst, len(s)) // the result is never longer than s
	n := len(dst)
	out := dst[:n+len(s)]
	stray := n - 3 // the position in the output of a "%" that does not start an escape
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '%' {
			seen |= byteClasses[c]
			out[n] = c
			n++
			continue
		}
		b, ok := slim.Unescape(s, i)
		if !ok {
			stray = n
			out[n] = c
			n++
			continue
		}
		i += 2
		class := byteClasses[b]
		completes := n-stray <= 2 && slim.IsHex(b) && (n-stray == 1 || slim.IsHex(out[stray+1]))
		if class&kept != 0 || completes {
			out[n], out[n+1], out[n+2] = '%', slim.UpperHex[b>>4], slim.UpperHex[b&15]
			n += 3
			seen |= byteUpper
		} else {
			out[n] = b
			n++
			seen |= class
		}
	}
	return out[:n], seen
}

// appendValid appends a path as it was sent, but omits the bytes that are not UTF-8, whether or not
// they are percent-encoded.
//
//go:noinline
func appendValid(dst []byte, sent string) []byte {
	for i := 0; i < len(sent); {
		var text [utf8.UTFMax]byte
		var ends [utf8.UTFMax]int // for each byte of text, where it ends in sent
		n := 0
		for at := i; n < len(text) && at < len(sent); n++ {
			b, width := sent[at], 1
			if escaped, ok := slim.Unescape(sent, at); b == '%' && ok {
				b, width = escaped, 3
			}
			if b < utf8.RuneSelf {
				break
			}
			at += width
			text[n], ends[n] = b, at
		}
		if n == 0 {
			dst = append(dst, sent[i])
			i++
			continue
		}
		end := ends[0]
		if r, size := utf8.DecodeRune(text[:n]); r != utf8.RuneError || size > 1 {
			end = ends[size-1]
			dst = append(dst, sent[i:end]...)
		}
		i = end
	}
	return dst
}

// shortenedMax is the greatest number of texts that shorten stores.
const shortenedMax = 12

// shorten stores what remains of a path, which is given as it was sent, for servers
// that drop parts of it before they read it:
//
//   - the bytes that are not UTF-8, so /adm%FFin means /admin. Programs in Python that decode a
//     path with errors="ignore", such as Bottle, drop them.
//   - the first ";" and all text after it, so /login;/x means /login. Fastify up to version 4 and
//     restify drop it. Behind a proxy that decodes the path before it forwards it, they drop %3B,
//     too.
//   - %0A at the end, so /login%0A means /login. In regular expressions of Python, Ruby, Perl, .NET
//     and nginx, "$" matches before a line feed at the end. Starlette and Pyramid compare paths
//     with such expressions.
//
// Before the call, texts holds the path, and the path without the bytes that are not UTF-8. The
// result end is the index after the last text.
//
//go:noinline
func shorten(texts *[shortenedMax]string) (end int) {
	whole := 2
	if len(texts[0]) == len(texts[1]) {
		whole = 1
	}
	end = whole
	for _, text := range texts[:whole] {
		for i, cut := 0, false; i < len(text); i++ {
			raw := text[i] == ';'
			if raw || !cut && isEscape(text, i, ';') {
				texts[end], cut = text[:i], true
				end++
			}
			if raw {
				break
			}
		}
	}
	for _, text := range texts[:end] {
		if at := len(text) - len("%0A"); at >= 0 && isEscape(text, at, '\n') {
			texts[end] = text[:at]
			end++
		}
	}
	return end
}

// isEscape reports whether s[i:] begins with the byte c in percent-encoding.
func isEscape(s string, i int, c byte) bool {
	if s[i] != '%' {
		return false
	}
	b, ok := slim.Unescape(s, i)
	return ok && b == c
}

// growBytes returns dst with room for n more bytes.
//
//go:noinline
func growBytes(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	return append(make([]byte, 0, 2*cap(dst)+n), dst...)
}
