// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"unsafe"
)

// JoinLines returns the lines of a request header as one: joined by ", ", those of Cookie by "; ", as RFC 9113 says. Servers
// read every line of Cookie, so a second one must hide no credential. It allocates for more than one line.
func JoinLines(name string, lines []string) string {
	if name == "Cookie" {
		return strings.Join(lines, "; ")
	}
	return strings.Join(lines, ", ")
}

// requestBufferBytesMax is how much buffer a request keeps for the next one: what a path of 8 KiB needs in all its
// readings. What a longer path needed is let go of, so that no client makes a pool of requests large for good.
const requestBufferBytesMax = 64 << 10

// request is one request as the matcher sees it: read once from its attributes and brought into one form. The zero
// request is ready to read; reuse it, so that its buffers are. Its strings are valid until the next read. It must not be
// used concurrently.
type request struct {
	attrs  Attributes
	path   string     // normalised, case kept
	folded string     // path without differences of case
	method string     // upper case, HEAD as GET
	host   string     // lower case, without port and trailing dot; an IPv6 address stands in brackets
	peer   netip.Addr // the client's address, unmapped, without zone; zero if unknown
	origin addressOrigin
	client *Identity // as far as it has been found out; nil before
	// unreadable counts the costs that a trusted header should have said and did not. Only a plan begins it anew.
	unreadable int

	// readings are the ways to read the path: the plain one, which is also in path and folded, and any other that servers
	// are known to have and that differs.
	readings []reading
	buffer   []byte
	search   pathSearch
}

// read takes a request in. It does not allocate once the request's buffers have grown, but for a path too long to keep
// them.
func (r *request) read(a Attributes) {
	if cap(r.buffer) > requestBufferBytesMax {
		r.buffer, r.readings = nil, nil
	}
	r.buffer = r.buffer[:0]
	r.attrs, r.client = a, nil
	r.readPath(a.Path())
	r.method = r.canonicalMethod(a.Method())
	r.host = r.canonicalHost(a.Host())
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

func (r *request) readPath(p string) {
	traits := inspectPath(p)
	plain := reading{path: p, folded: p}
	if !traits.plain {
		plain.path = r.normalized(p, 0)
	}
	if !traits.folded {
		plain.folded = r.fold(plain.path)
	}
	r.path, r.folded = plain.path, plain.folded
	r.readings = append(r.readings[:0], plain)
	if traits.readings != 0 {
		r.addReadings(p, traits.readings)
	}
}

// addReadings adds the readings in which servers that take some of these ways differ from the plain one.
func (r *request) addReadings(p string, possible readingSet) {
	for ways := readingSet(1); ways <= readingsAll; ways++ {
		if ways&^possible != 0 {
			continue
		}
		path := r.normalized(p, ways)
		known := false
		for i := range r.readings {
			known = known || r.readings[i].path == path
		}
		if !known {
			r.readings = append(r.readings, reading{path: path, folded: r.fold(path)})
		}
	}
}

// since returns what was appended to the buffer after mark.
func (r *request) since(mark int) string {
	b := r.buffer[mark:]
	return unsafe.String(unsafe.SliceData(b), len(b)) // appended to, but not changed before the next read
}

func (r *request) normalized(p string, ways readingSet) string {
	mark := len(r.buffer)
	r.buffer = appendNormalized(r.buffer, p, ways)
	return r.since(mark)
}

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
