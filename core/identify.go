// SPDX-License-Identifier: Apache-2.0

package core

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"unsafe"
)

// valueBytesMax is how long an identifier or another value of a key may be: what clients write would otherwise fill the
// store's memory. A longer value counts by its hash, under a kind of its own.
const valueBytesMax = 255

// hashSuffix marks the kind of a hashed value. No header or attribute that ends in it is accepted in a policy, so that
// nobody can write another's hash into a header and be counted as them.
const hashSuffix = "-sha256"

// prefixBits are how many leading bits of an address count as one client.
type prefixBits struct{ v4, v6 int }

// The prefixes of a policy that names none: an IPv6 customer usually has a /64 to himself.
var prefixDefault = prefixBits{v4: 32, v6: 64}

// finder is one way of identifying a client, made ready for requests.
type finder struct {
	kind     IdentifyKind
	name     string
	label    string // Identity.Kind
	hashed   string // Identity.Kind of an ID that was too long
	prefixes prefixBits
}

// compileIdentity fills in the finders, and the prefixes of per: [ip]: those of the first method that is by address.
func (rs *Ruleset) compileIdentity(methods []Identify) {
	if len(methods) == 0 {
		methods = []Identify{{Kind: IdentifyIP}}
	}
	rs.prefixes = prefixDefault
	byAddress := false
	for _, m := range methods {
		f := newFinder(m)
		if f.kind == IdentifyIP && !byAddress {
			rs.prefixes, byAddress = f.prefixes, true
		}
		rs.finders = append(rs.finders, f)
	}
}

func newFinder(m Identify) finder {
	f := finder{kind: m.Kind, name: m.Name, label: "ip", prefixes: prefixDefault}
	switch m.Kind {
	case IdentifyHeader:
		f.name, f.label = canonicalHeader(m.Name), headerLabel(m.Name)
	case IdentifyAttr:
		f.label = attrLabel(m.Name)
	}
	f.hashed = f.label + hashSuffix
	if m.IPv4Prefix != 0 {
		f.prefixes.v4 = m.IPv4Prefix
	}
	if m.IPv6Prefix != 0 {
		f.prefixes.v6 = m.IPv6Prefix
	}
	return f
}

// identify finds out who sent the request that was read last, and leaves it in p.asking and for conditions in p.request.
// It reports whether the request is refused for a credential.
func (p *Plan) identify(rs *Ruleset) (refused bool) {
	p.asking = p.whoAsks(rs)
	p.request.client = &p.asking
	return false
}

// whoAsks returns the client; the zero Identity is nobody.
func (p *Plan) whoAsks(rs *Ruleset) Identity {
	for i := range rs.finders {
		f := &rs.finders[i]
		if f.kind == IdentifyIP {
			if !p.request.peer.IsValid() {
				continue
			}
			mark := len(p.text)
			p.text = appendAddr(p.text, p.request.peer, f.prefixes)
			return Identity{Kind: f.label, ID: p.textSince(mark)}
		}
		value, ok := "", false
		if f.kind == IdentifyHeader {
			value, ok = p.request.attrs.Header(f.name)
		} else {
			value, ok = p.request.attrs.Attr(f.name)
		}
		switch {
		case !ok || value == "":
		case len(value) > valueBytesMax:
			mark := len(p.text)
			p.text = appendHash(p.text, value)
			return Identity{Kind: f.hashed, ID: p.textSince(mark)}
		default:
			return Identity{Kind: f.label, ID: value}
		}
	}
	return Identity{}
}

// textSince returns what was appended to the plan's text after mark. The text only grows until Reset.
func (p *Plan) textSince(mark int) string {
	b := p.text[mark:]
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// appendAddr appends the address, or its prefix if that is shorter. The address is unmapped: a prefix of a mapped one
// would put every IPv4 client of the world together.
func appendAddr(dst []byte, addr netip.Addr, prefixes prefixBits) []byte {
	bits := prefixes.v6
	if addr.Is4() {
		bits = prefixes.v4
	}
	if bits >= addr.BitLen() {
		return addr.AppendTo(dst)
	}
	prefix, err := addr.Prefix(bits)
	if err != nil { // Compile checked the bits
		return addr.AppendTo(dst)
	}
	return prefix.AppendTo(dst)
}

// appendHash appends what stands for a value that is too long.
func appendHash(dst []byte, value string) []byte {
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(value), len(value)))
	return hex.AppendEncode(dst, sum[:])
}

func headerLabel(name string) string { return "header." + strings.ToLower(name) }

func attrLabel(name string) string { return "attr." + name }
