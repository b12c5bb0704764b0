// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/hex"
	mathbits "math/bits"
	"net/netip"
	"strconv"
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
	// verifier says whose the credentials are that are found in the carriers; nil for what needs no proof.
	verifier Verifier
	costly   CostlyVerifier // the verifier, if it is one
	carriers []CredentialSource
	deny     bool // refuse a request whose credential does not verify
}

// believes is what a policy says of addresses, users, tenants and tiers.
type believes struct {
	forwarding forwarding
	users      []source
	tenants    []source
	tiers      []source
	witnessed  *Identity // who is asking, whatever the request says; for findCrowd
}

// compileIdentity fills in the finders, the prefixes of per: [ip], which are those of the first method that is by
// address, and what the policy says of addresses, users, tenants and tiers. ok is false if a trusted proxy is no address
// range.
func (rs *Ruleset) compileIdentity(p *Policy) (ok bool) {
	methods := p.Identify
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
	trusted, ok := compilePrefixes(p.TrustedProxies)
	rs.forwarding = forwarding{hops: p.TrustedHops, trusted: newAddrSet(trusted)}
	rs.users, rs.tenants, rs.tiers = newSources(p.User), newSources(p.Tenant), newSources(p.Tier)
	return ok
}

func newFinder(m Identify) finder {
	f := finder{kind: m.Kind, name: m.Name, label: "ip", prefixes: prefixDefault}
	switch m.Kind {
	case IdentifyHeader:
		f.name, f.label = canonicalHeader(m.Name), headerLabel(m.Name)
	case IdentifyAttr:
		f.label = attrLabel(m.Name)
	case IdentifyCookie:
		f.label = cookieLabel(m.Name)
	case IdentifyJWT, IdentifyAPIKey:
		f.verifier, f.carriers, f.deny = m.Verifier, newCarriers(m), m.DenyInvalid
		f.costly, _ = m.Verifier.(CostlyVerifier)
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

// identify finds out who sent the request that was read last and from where, and leaves that in p.asking and for
// conditions in p.request. It reports whether the request is refused for a credential; p.badCredential says what is wrong
// with it.
func (p *Plan) identify(rs *Ruleset) (refused bool) {
	p.toldBy = nil
	p.request.client = &p.asking
	if rs.witnessed != nil {
		p.asking = *rs.witnessed
		return false
	}
	p.request.peer, p.request.origin = rs.forwarding.client(p.request.attrs)
	bad := p.whoAsks(rs)
	if p.asking.User == "" {
		p.asking.User = p.request.firstOf(rs.users)
	}
	if p.asking.Tenant == "" {
		p.asking.Tenant = p.request.firstOf(rs.tenants)
	}
	if p.asking.Tier == "" {
		p.asking.Tier = p.request.firstOf(rs.tiers)
	}
	if bad == CredentialAbsent {
		return false
	}
	if p.refusal != refusalUnauthorized { // then another policy refused before
		p.badCredential = bad
	}
	return true
}

// whoAsks finds out who that is; the zero Identity is nobody. It returns the state of the credential that the request is
// refused for; nobody is asking then, for whoever it is must not be counted as another. An identity is large, so it is
// written where it stays.
func (p *Plan) whoAsks(rs *Ruleset) (bad CredentialState) {
	p.asking = Identity{}
	for i := range rs.finders {
		f := &rs.finders[i]
		if f.verifier == nil {
			if p.claimed(f); p.asking.Kind != "" {
				return CredentialAbsent
			}
			continue
		}
		switch who, state := p.verify(rs, i); state {
		case CredentialAbsent:
		case CredentialValid:
			p.asking = bounded(*who)
			return CredentialAbsent
		default:
			return state
		}
	}
	return CredentialAbsent
}

// claimed takes the client from what the request says, where that needs no proof.
func (p *Plan) claimed(f *finder) {
	value, ok := "", false
	switch f.kind {
	case IdentifyIP:
		if p.request.peer.IsValid() {
			mark := len(p.text)
			p.text = appendAddr(p.text, p.request.peer, f.prefixes)
			p.asking.Kind, p.asking.ID = f.label, p.textSince(mark)
		}
		return
	case IdentifyHeader:
		value, ok = p.request.attrs.Header(f.name)
	case IdentifyCookie:
		cookies, _ := p.request.attrs.Header("Cookie")
		var state CredentialState
		value, state = cookieValue(cookies, f.name)
		ok = state == CredentialValid
	default:
		value, ok = p.request.attrs.Attr(f.name)
	}
	switch {
	case !ok || value == "" || p.request.tooLong(value):
	case len(value) > valueBytesMax:
		mark := len(p.text)
		p.text = appendHash(p.text, value)
		p.asking.Kind, p.asking.ID = f.hashed, p.textSince(mark)
	default:
		p.asking.Kind, p.asking.ID = f.label, value
	}
}

// bounded returns the identity with an ID that is not too long. Verifiers see to that themselves, but others write them.
func bounded(who Identity) Identity {
	if len(who.ID) > valueBytesMax {
		short := IdentityOf(who.Kind, who.ID)
		who.Kind, who.ID = short.Kind, short.ID
	}
	return who
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
	if bits <= 64 && addr.Is6() {
		return appendHalf(dst, newAddrKey(addr).high, bits)
	}
	prefix, err := addr.Prefix(bits)
	if err != nil { // Compile checked the bits
		return addr.AppendTo(dst)
	}
	return prefix.AppendTo(dst)
}

// appendHalf appends an IPv6 prefix of at most 64 bits as [netip.Prefix] writes it, in half the time: the groups of
// its right half are zero, so that those which "::" stands for are at the end. It is how most IPv6 clients are counted.
func appendHalf(dst []byte, high uint64, bits int) []byte {
	const digits = "0123456789abcdef"
	high &^= ^uint64(0) >> bits
	for ; high != 0; high <<= 16 {
		group := high >> 48
		for at := max(0, (mathbits.Len64(group)-1)/4*4); at >= 0; at -= 4 {
			dst = append(dst, digits[group>>at&15])
		}
		if high<<16 != 0 {
			dst = append(dst, ':')
		}
	}
	dst = append(dst, "::/"...)
	return strconv.AppendInt(dst, int64(bits), 10)
}

// appendHash appends what stands for a value that is too long.
func appendHash(dst []byte, value string) []byte {
	sum := sum256(unsafe.Slice(unsafe.StringData(value), len(value)))
	return hex.AppendEncode(dst, sum[:])
}

func headerLabel(name string) string { return "header." + LowerASCII(name) }

func cookieLabel(name string) string { return "cookie." + name }

func attrLabel(name string) string { return "attr." + name }
