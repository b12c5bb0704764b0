// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"unsafe"
)

// JoinLines returns the lines of a request header as one: joined by ", ", those of Cookie by "; ", as RFC 9113 says. Servers
// read every line of Cookie, so a second one must hide no credential. It allocates for more than one line. Of more than
// can be read it returns the last lines: so many that it is still more, and all that is read of X-Forwarded-For.
func JoinLines(name string, lines []string) string {
	first := len(lines)
	for size := 0; first > 0 && size <= carrierBytesMax+len(", "); {
		first--
		size += len(lines[first]) + len(", ")
	}
	lines = lines[first:]
	if name == "Cookie" {
		return strings.Join(lines, "; ")
	}
	return strings.Join(lines, ", ")
}

// requestBufferBytesMax is how much buffer a request keeps for the next one: what the longest path that is read needs in
// all its readings. What a long host needed is let go of, so that no client makes a pool of requests large for good.
const requestBufferBytesMax = 96 << 10

// request is one request as the matcher sees it: read once from its attributes and brought into one form. The zero
// request is ready to read; reuse it, so that its buffers are. Its strings are valid until the next read. It must not be
// used concurrently.
type request struct {
	attrs  Attributes
	path   string // normalised, case kept
	folded string // path without differences of case
	method string // upper case, HEAD as GET
	host   string // lower case, without port and trailing dot; an IPv6 address stands in brackets
	long   bool   // the path was not read, for its length: then it has no readings
	// oversized is the status for something else that was looked at and is too long, 0 for none.
	oversized int
	peer      netip.Addr // the client's address, unmapped, without zone; zero if unknown
	origin    addressOrigin
	client    *Identity // as far as it has been found out; nil before
	// unreadable counts the costs that a trusted header should have said and did not. Only a plan begins it anew.
	unreadable int

	// readings are the ways to read the path: the plain one, which is also in path and folded, and any other that servers
	// are known to have and that differs.
	readings   []reading
	semicolons bool // the path has escaped ones
	buffer     []byte
	search     pathSearch
}

// read takes a request in. It does not allocate once the request's buffers have grown, but for a path too long to keep
// them.
func (r *request) read(a Attributes) {
	if cap(r.buffer) > requestBufferBytesMax {
		r.buffer, r.readings = nil, nil
	}
	r.buffer = r.buffer[:0]
	r.attrs, r.client, r.oversized = a, nil, 0
	r.readPath(a.Path())
	if r.method = a.Method(); len(r.method) <= fieldBytesMax {
		r.method = r.canonicalMethod(r.method)
	}
	if r.host = a.Host(); len(r.host) <= fieldBytesMax {
		r.host = r.canonicalHost(r.host)
	}
	r.peer, r.origin = plainAddr(a.Peer()), addressOfFront
}

// source returns what stands for the client's address in [Check], of an IPv6 address for its network of 64 bits.
func (r *request) source() uint32 {
	if !r.peer.IsValid() {
		return 0
	}
	const golden = 0x9e3779b97f4a7c15 // spreads the bits
	return uint32(newAddrKey(r.peer).high*golden>>32) | 1
}

// readPath reads the path in every way. One that is longer than paths are, or has too many pieces, is not read: it has no
// readings, and no pattern matches it.
func (r *request) readPath(p string) {
	r.readings = r.readings[:0]
	r.path, r.folded, r.long = "", "", true
	if len(p) > PathBytesMax {
		return
	}
	traits := inspectPath(p)
	if crowdedPath(p, traits.readings) {
		return
	}
	r.long = false
	if traits.plain && traits.readings == 0 {
		r.path, r.folded = p, p
		if !traits.folded {
			r.folded = r.fold(p)
		}
		r.readings = append(r.readings, reading{path: p, folded: r.folded})
		return
	}
	r.readUnusual(p, traits.readings)
}

// readUnusual reads a path that is not in its normal form, or that can be read in several ways.
//
//go:noinline
func (r *request) readUnusual(p string, possible readingSet) {
	decoded := trimToPath(p)
	r.semicolons = false
	if strings.IndexByte(decoded, '%') >= 0 {
		r.semicolons = strings.Contains(decoded, "%3B") || strings.Contains(decoded, "%3b")
		mark := len(r.buffer)
		r.buffer = appendDecoded(r.buffer, decoded, true)
		decoded = r.since(mark)
	}
	folded := r.fold(decoded)
	for ways := readingSet(0); ways <= readingsAll; ways++ {
		if ways&^possible == 0 {
			r.addReading(decoded, folded, ways)
		}
	}
	r.path, r.folded = r.readings[0].path, r.readings[0].folded
}

// addReading adds the reading in which servers that take these ways differ from those before.
func (r *request) addReading(decoded, folded string, ways readingSet) {
	path := r.resolved(decoded, ways)
	for i := range r.readings {
		if r.readings[i].path == path {
			return
		}
	}
	r.readings = append(r.readings, reading{path: path, folded: r.resolved(folded, ways)})
}

// since returns what was appended to the buffer after mark.
func (r *request) since(mark int) string {
	b := r.buffer[mark:]
	return unsafe.String(unsafe.SliceData(b), len(b)) // appended to, but not changed before the next read
}

//go:noinline
func (r *request) resolved(decoded string, ways readingSet) string {
	mark := len(r.buffer)
	r.buffer = appendSegments(r.buffer, decoded, ways)
	if r.semicolons {
		r.buffer = unescapeSemicolons(r.buffer, mark)
	}
	return r.since(mark)
}

//go:noinline
func (r *request) fold(s string) string {
	mark := len(r.buffer)
	r.buffer = appendFolded(r.buffer, s)
	return r.since(mark)
}

// canonicalMethod returns the method in upper case, for some servers take "get" for GET, and GET for HEAD.
func (r *request) canonicalMethod(method string) string {
	switch method {
	case "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	case "HEAD":
		return "GET"
	}
	mark := len(r.buffer)
	for i := 0; i < len(method); i++ {
		r.buffer = append(r.buffer, upperByte(method[i]))
	}
	if upper := r.since(mark); upper != "HEAD" {
		return upper
	}
	return "GET"
}

// canonicalHost returns the host in lower case, without port and trailing dot. An IPv6 address gets its one short form
// and stands in brackets.
func (r *request) canonicalHost(host string) string {
	colons, changes := 0, false
	for i := 0; i < len(host); i++ {
		c := host[i]
		if c == ':' {
			colons++
		}
		changes = changes || c >= 'A' && c <= 'Z'
	}
	switch {
	case host == "":
		return ""
	case host[0] == '[' || colons > 1:
		return r.canonicalAddr(host)
	case colons == 1:
		host = host[:strings.IndexByte(host, ':')]
	}
	host = strings.TrimSuffix(host, ".")
	if !changes {
		return host
	}
	return r.lower(host)
}

func (r *request) canonicalAddr(host string) string {
	text, ok := strings.CutPrefix(host, "[")
	if end := strings.IndexByte(text, ']'); ok && end >= 0 {
		text = text[:end]
	}
	const addrBytesMax = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
	if len(text) > addrBytesMax || strings.IndexByte(text, '%') >= 0 {
		return r.lower(host)
	}
	addr, ok := parseAddr(text)
	if !ok {
		return r.lower(host)
	}
	mark := len(r.buffer)
	r.buffer = append(r.buffer, '[')
	r.buffer = addr.AppendTo(r.buffer)
	r.buffer = append(r.buffer, ']')
	return r.since(mark)
}

func (r *request) lower(s string) string {
	mark := len(r.buffer)
	for i := 0; i < len(s); i++ {
		r.buffer = append(r.buffer, lowerByte(s[i]))
	}
	return r.since(mark)
}
