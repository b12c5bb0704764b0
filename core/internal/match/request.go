// SPDX-License-Identifier: Apache-2.0

package match

import (
	"net/netip"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// requestBufferBytesMax is the greatest size of a buffer that a request keeps for reuse.
// requestBufferBytesMax suffices for all readings of the longest path. A larger buffer, needed for
// example for a long host, is released, so that no client can enlarge the pooled requests
// permanently.
const requestBufferBytesMax = 96 << 10

// Request is a request in normalized form, read once from its attributes. The zero Request is ready
// to use; calling Read again reuses its buffers. A Request's strings are valid until the next Read.
// A Request must not be used concurrently.
type Request struct {
	Attrs  policy.Attributes
	path   string // normalized, case kept
	folded string // path with case folded
	Method string // upper case, HEAD as GET
	Host   string // lower case, without port and trailing dot; an IPv6 address has brackets
	Long   bool   // the path is too long and was not read: it has no readings
	// Oversized is the status for another value that is too long to compare; 0 if no value is.
	Oversized int
	Peer      netip.Addr // the client's address, unmapped, without zone; zero if unknown
	Origin    AddressOrigin
	Client    *policy.Identity // the client's properties known so far; nil before it is identified
	// Unreadable counts the costs that a trusted header should have contained but did not. Only
	// resetting the core.Plan of the request clears it.
	Unreadable int

	// Readings are the results of reading the path in each way that known servers do, without
	// duplicates. The first reading is the plain one, which path and folded also contain.
	Readings []pathReading
	// the decoded path, whose separators are "/", or also "\\", or also "%2F", or all three
	separated  [4]string
	semicolons bool     // the path has parameters, and escaped semicolons
	folds      bool     // folding may change the decoded path
	size       pathSize // an upper bound for the readings so far
	buffer     []byte
	search     pathSearch
	globs      []globState // working memory of a globSet
}

// Read reads the request. After the request's buffers have grown, Read does not allocate, except
// for a path whose buffers are too large to keep.
func (r *Request) Read(a policy.Attributes) {
	if cap(r.buffer) > requestBufferBytesMax {
		r.buffer, r.Readings = nil, nil
	}
	r.buffer = r.buffer[:0]
	r.Attrs, r.Client, r.Oversized = a, nil, 0
	r.readPath(a.Path())
	if r.Method = a.Method(); len(r.Method) <= FieldBytesMax {
		r.Method = r.canonicalMethod(r.Method)
	}
	if r.Host = a.Host(); len(r.Host) <= FieldBytesMax {
		r.Host = r.canonicalHost(r.Host)
	}
	r.Peer, r.Origin = PlainAddr(a.Peer()), AddressOfFront
}

// Source returns the Source of a [counter.Check] for the client's address. All IPv6 addresses of a
// /64 have the same Source.
func (r *Request) Source() uint32 {
	if !r.Peer.IsValid() {
		return 0
	}
	const golden = 0x9e3779b97f4a7c15 // multiplication by this constant spreads the bits
	return uint32(NewAddrKey(r.Peer).High*golden>>32) | 1
}

// readPath reads the path in every way. A path that is too long or has too many segments is not
// read: it has no readings, and no pattern matches it.
func (r *Request) readPath(p string) {
	r.Readings = r.Readings[:0]
	r.path, r.folded, r.Long = "", "", true
	if len(p) > policy.PathBytesMax {
		return
	}
	traits := inspectPath(p)
	if !traits.plain || traits.readings != 0 || !traits.folded && !utf8.ValidString(p) ||
		len(p) > PathPiecesMax && strings.Count(p, "/") > PathPiecesMax {
		r.readUnusual(p, &traits)
		return
	}
	r.Long = false
	r.path, r.folded = p, p
	if !traits.folded {
		r.folded = r.fold(p)
	}
	r.Readings = append(r.Readings, pathReading{path: p, folded: r.folded})
}

// readUnusual reads a path that is not in normal form, that servers read in several ways, or that
// has too many segments.
//
//go:noinline
func (r *Request) readUnusual(p string, traits *pathTraits) {
	r.size = pathSize{}
	sent := trimToPath(p)
	if !r.readAll(p, sent, traits) || !r.readShortened(sent) {
		r.Readings = r.Readings[:0]
		return
	}
	r.Long = false
	r.path, r.folded = r.Readings[0].path, r.Readings[0].folded
}

// readShortened adds the readings of servers that drop parts of the path, which is given as it was
// sent, without its first slash. The result ok is false if all readings together exceed the bounds.
//
//go:noinline
func (r *Request) readShortened(sent string) (ok bool) {
	// Only stored readings are looked up, and equal ones were stored once, so count those.
	r.size = pathSize{readings: len(r.Readings)}
	for i := range r.Readings {
		r.size.pieces += strings.Count(r.Readings[i].path, "/")
		r.size.bytes += len(r.Readings[i].path)
	}
	mark := len(r.buffer)
	r.buffer = appendSegment(r.buffer, sent)
	var texts [shortenedMax]string
	texts[0] = r.appendedSince(mark)
	mark = len(r.buffer)
	r.buffer = appendValid(r.buffer, texts[0])
	texts[1] = r.appendedSince(mark)
	for _, text := range texts[1:shorten(&texts)] {
		traits := inspectPath(text)
		if traits.plain && traits.readings == 0 && r.hasReading(text) {
			continue
		}
		if !r.readAll(text, text[1:], &traits) {
			return false
		}
	}
	return true
}

// readAll reads the path p in all ways, unless all readings together would then exceed the bounds;
// the result ok is false in that case. The argument sent is the part of p that is read, without its
// first slash.
//
//go:noinline
func (r *Request) readAll(p, sent string, traits *pathTraits) (ok bool) {
	if r.size.add(traits, p); r.size.exceedsBounds() {
		return false
	}
	possible := traits.readings
	r.readDecoded(sent, possible)
	// without these escapes, the readings would be the same as those above
	if traits.escapedBackslashes+traits.escapedSlashes > 0 {
		r.readBeforeDecoding(sent, possible)
	}
	if traits.mixesParameters() {
		r.readWithoutParameters(sent, possible)
	}
	if traits.mixesDots {
		r.readWithoutDots(sent, possible)
	}
	if traits.mayBeginWithBackslash(p) {
		r.readForwarded()
	}
	return true
}

// readWithoutParameters adds the readings of servers that drop parameters before they decode the
// path. A backslash or an escaped slash is then part of a parameter.
func (r *Request) readWithoutParameters(sent string, possible readingSet) {
	mark := len(r.buffer)
	r.buffer = appendWithoutParameters(r.buffer, sent)
	r.readDecoded(r.appendedSince(mark), possible&^readParameters)
}

// readWithoutDots adds the readings of servers that resolve dot segments before they decode the
// path. An escaped dot is then part of a name, so /admin/%2e/../x means /admin/x.
func (r *Request) readWithoutDots(sent string, possible readingSet) {
	r.semicolons = false // in the sent path they are still escaped
	r.readDecoded(r.resolveDots(sent, 0)[1:], possible)
}

// readForwarded adds the readings of servers behind another proxy that has already resolved the dot
// segments of the path. If the resolved path begins with a backslash, such a server reads a host
// there.
func (r *Request) readForwarded() {
	for i := range r.Readings {
		path := r.Readings[i].path
		if !strings.HasPrefix(path, `/\`) {
			continue
		}
		mark := len(r.buffer)
		r.buffer = appendReplaced(r.buffer, path[1:], `\`, '/')
		r.readDecoded(trimAuthority(r.appendedSince(mark)), 0)
	}
}

// readBeforeDecoding adds the readings of servers that look for separators before they decode the
// path. Such servers find slashes, and the end of a host, in the path as it was sent.
func (r *Request) readBeforeDecoding(sent string, possible readingSet) {
	if strings.IndexByte(sent, '\\') >= 0 {
		mark := len(r.buffer)
		r.buffer = appendReplaced(r.buffer, sent, `\`, '/')
		sent = r.appendedSince(mark)
		r.readDecoded(sent, possible)
	}
	if possible&readAuthority != 0 {
		if rest := trimAuthority(sent); rest != sent {
			r.readDecoded(rest, possible&^readAuthority)
		}
	}
}

// readDecoded adds the readings of a path. sent is the path as received, less its first slash.
func (r *Request) readDecoded(sent string, possible readingSet) {
	decoded := sent
	r.semicolons = false
	var seen byteClass
	if strings.IndexByte(sent, '%') >= 0 {
		kept := neverDecoded
		// keep escaped semicolons until the parameters are removed
		if possible&readEncodedParameters != 0 {
			r.semicolons = true
			kept |= byteSemicolon
		}
		mark := len(r.buffer)
		r.buffer, seen = appendDecoded(r.buffer, sent, kept)
		decoded = r.appendedSince(mark)
	} else {
		seen, _ = scan(sent)
	}
	r.folds = seen&(byteUpper|byteBeyond) != 0
	r.separated = [4]string{decoded}
	for ways := readingSet(0); ways <= readingsAll; ways++ {
		if ways.canRead(possible) {
			r.addReading(ways)
		}
	}
}

// addReading adds the reading of servers that read the path in these ways, if it differs from the
// readings already added.
func (r *Request) addReading(ways readingSet) {
	text := r.separate(ways)
	mark := len(r.buffer)
	path := r.resolveDots(text, ways)
	if r.hasReading(path) {
		r.buffer = r.buffer[:mark]
		return
	}
	folded := path
	if r.folds {
		folded = r.foldOnce(path)
	}
	r.Readings = append(r.Readings, pathReading{path: path, folded: folded})
}

// hasReading reports whether the path is one of the readings.
//
//go:noinline
func (r *Request) hasReading(path string) bool {
	for i := range r.Readings {
		if r.Readings[i].path == path {
			return true
		}
	}
	return false
}

// foldOnce returns a path with case folded. If an earlier reading ends in this path, foldOnce folds
// only what precedes the path there, and uses the end of that reading's folded text.
func (r *Request) foldOnce(path string) string {
	for i := range r.Readings {
		before := &r.Readings[i]
		if begin, ok := strings.CutSuffix(before.path, path); ok && len(begin) < len(path) {
			mark := len(r.buffer)
			r.buffer = appendFolded(r.buffer, begin)
			begins := len(r.buffer) - mark
			r.buffer = r.buffer[:mark]
			return before.folded[begins:]
		}
	}
	return r.fold(path)
}

// Request.separate returns the decoded path with all separators that these ways recognize written
// as "/".
func (r *Request) separate(ways readingSet) string {
	at := 0
	if ways&readBackslash != 0 {
		at = 1
		if r.separated[1] == "" {
			r.separated[1] = r.replaceSeparator(r.separated[0], `\`)
		}
	}
	if ways&readEncodedSlash == 0 {
		return r.separated[at]
	}
	if r.separated[2+at] == "" {
		r.separated[2+at] = r.replaceSeparator(r.separated[at], "%2F")
	}
	return r.separated[2+at]
}

// replaceSeparator returns the path with "/" in place of the separator.
func (r *Request) replaceSeparator(path, separator string) string {
	mark := len(r.buffer)
	r.buffer = appendReplaced(r.buffer, path, separator, '/')
	return r.appendedSince(mark)
}

// appendedSince returns the bytes appended to the buffer after mark.
func (r *Request) appendedSince(mark int) string {
	b := r.buffer[mark:]
	// later appends do not change these bytes before the next Read
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// resolveDots returns a reading of text, a path that is decoded and has only "/" as its separator.
// The reading has no empty segments, and no dot segments unless ways contains readDots.
//
//go:noinline
func (r *Request) resolveDots(text string, ways readingSet) string {
	if ways&readAuthority != 0 {
		text = trimAuthority(text)
	}
	semicolon := ""
	if r.semicolons {
		semicolon = "%3B"
	}
	mark := len(r.buffer)
	r.buffer = appendSegments(growBytes(r.buffer, len(text)+1), text, ways, semicolon)
	return r.appendedSince(mark)
}

// Request.fold returns the text with case folded. The method returns the text itself if there is
// nothing to fold.
//
//go:noinline
func (r *Request) fold(s string) string {
	mark := len(r.buffer)
	r.buffer = appendFolded(r.buffer, s)
	if folded := r.appendedSince(mark); folded != s {
		return folded
	}
	r.buffer = r.buffer[:mark]
	return s
}

// canonicalMethod returns the method in upper case, and GET for HEAD, because some servers treat
// "get" as GET.
func (r *Request) canonicalMethod(method string) string {
	switch method {
	case "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	case "HEAD":
		return "GET"
	}
	mark := len(r.buffer)
	for i := 0; i < len(method); i++ {
		r.buffer = append(r.buffer, slim.UpperByte(method[i]))
	}
	if upper := r.appendedSince(mark); upper != "HEAD" {
		return upper
	}
	return "GET"
}

// canonicalHost returns the host in lower case, without port and trailing dot. An IPv6 address is
// shortened to its canonical form in brackets.
func (r *Request) canonicalHost(host string) string {
	seen, _ := scan(host)
	switch {
	case host == "":
		return ""
	case host[0] == '[':
		return r.canonicalAddr(host)
	case seen&byteColon != 0:
		colon := strings.IndexByte(host, ':')
		if strings.IndexByte(host[colon+1:], ':') >= 0 {
			return r.canonicalAddr(host)
		}
		host = host[:colon]
	}
	host = strings.TrimSuffix(host, ".")
	if seen&byteUpper == 0 {
		return host
	}
	return r.lower(host)
}

func (r *Request) canonicalAddr(host string) string {
	text, ok := strings.CutPrefix(host, "[")
	if end := strings.IndexByte(text, ']'); ok && end >= 0 {
		text = text[:end]
	}
	const addrBytesMax = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
	if len(text) > addrBytesMax || strings.IndexByte(text, '%') >= 0 {
		return r.lower(host)
	}
	addr, ok := ParseAddr(text)
	if !ok {
		return r.lower(host)
	}
	mark := len(r.buffer)
	r.buffer = append(r.buffer, '[')
	r.buffer = addr.AppendTo(r.buffer)
	r.buffer = append(r.buffer, ']')
	return r.appendedSince(mark)
}

func (r *Request) lower(s string) string {
	mark := len(r.buffer)
	for i := 0; i < len(s); i++ {
		r.buffer = append(r.buffer, slim.LowerByte(s[i]))
	}
	return r.appendedSince(mark)
}

// AddressOrigin is the reason for the choice of the client's address.
type AddressOrigin uint8

// The origins of an address.
const (
	AddressOfFront      AddressOrigin = iota // neither trusted_proxies nor trusted_hops is set
	AddressOfConnection                      // the peer is not a trusted proxy
	AddressForwarded                         // a trusted proxy reported it
	// the chain has only trusted proxies; the left-most is used
	AddressAllTrusted
	// the chain is shorter than trusted_hops; the connection's address is used
	AddressShort
	AddressGarbage // the next element to the left in the chain is not an address
)

var addressOrigins = [...]string{"as the proxy knows it", "of the connection, which is from no trusted proxy",
	"named by the last trusted proxy in X-Forwarded-For", "of the first trusted proxy: X-Forwarded-For names no other",
	"of the connection: X-Forwarded-For is shorter than trusted_hops",
	"of the last trusted proxy before something in X-Forwarded-For that is no address"}

// String returns the origin as explain prints it.
func (o AddressOrigin) String() string { return addressOrigins[o] }
