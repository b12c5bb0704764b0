// SPDX-License-Identifier: Apache-2.0

package identify

import (
	mathbits "math/bits"
	"net/netip"
	"strconv"
	"unsafe"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// PrefixBits are the lengths of the address prefixes that count as one client.
type PrefixBits struct{ V4, V6 int }

// prefixDefault is for policies that set no prefix. An IPv6 subscriber usually has a /64.
var prefixDefault = PrefixBits{V4: 32, V6: 64}

// Finder is a compiled [policy.Identify], one way to identify a client.
type Finder struct {
	Kind     policy.IdentifyKind
	Name     string
	Label    string // Identity.Kind
	Hashed   string // Identity.Kind for a hashed ID
	prefixes PrefixBits
	// Verifier validates the credentials found in the carriers. Verifier is nil if this way needs
	// no credential.
	Verifier policy.Verifier
	costly   policy.CostlyVerifier // Verifier as a CostlyVerifier, if it is one
	carriers []policy.CredentialSource
	Deny     bool // deny a request whose credential is not valid
}

// Rules determines how a policy identifies the client of a request. The type is immutable after
// Compile.
type Rules struct {
	Finders    []Finder
	Prefixes   PrefixBits // the prefixes that per: [ip] counts as one client
	forwarding Forwarding
	users      []source
	tenants    []source
	tiers      []source
	Fixed      *policy.Identity // set only for sample requests: the client of every request
}

// Client is the client of a request, as identified by the most recent policy. The zero Client is
// ready to use. To reuse its buffers, call Reset before the next use. A Client must not be used
// concurrently.
type Client struct {
	Request  match.Request
	Identity policy.Identity
	// Entry is the entry that Find returned last, or nil.
	Entry *Entry
	Asker policy.Asker
	Uses  []Use
	// text holds the bytes of the identity's strings. Until Reset, the text never shrinks.
	text []byte
}

// Use is the result of checking one credential.
type Use struct {
	Method    int // the index in the policy's list "identify"
	State     policy.CredentialState
	Identity  *policy.Identity // the verifier's answer for a valid credential
	Unchecked bool             // the verifier had no time to check it
}

// Reset clears the request and keeps the buffers.
func (cl *Client) Reset() {
	cl.Request.Attrs, cl.Request.Unreadable = nil, 0
	cl.Identity, cl.Entry, cl.Asker = policy.Identity{}, nil, policy.Asker{}
	cl.Uses, cl.text = cl.Uses[:0], cl.text[:0]
}

// Compile fills in the rules from the policy. For per: [ip], it takes the prefixes of the first
// method that identifies by address. The result ok is false if a trusted proxy is not a valid
// address range.
func (r *Rules) Compile(p *policy.Policy) (ok bool) {
	methods := p.Identify
	if len(methods) == 0 {
		methods = []policy.Identify{{Kind: policy.IdentifyIP}}
	}
	r.Prefixes = prefixDefault
	byAddress := false
	for _, m := range methods {
		f := newFinder(m)
		if f.Kind == policy.IdentifyIP && !byAddress {
			r.Prefixes, byAddress = f.prefixes, true
		}
		r.Finders = append(r.Finders, f)
	}
	trusted, ok := match.CompilePrefixes(p.TrustedProxies)
	r.forwarding = Forwarding{Hops: p.TrustedHops, Trusted: match.NewAddrSet(trusted)}
	r.users, r.tenants, r.tiers = NewSources(p.User), NewSources(p.Tenant), NewSources(p.Tier)
	return ok
}

func newFinder(m policy.Identify) Finder {
	f := Finder{Kind: m.Kind, Name: m.Name, Label: "ip", prefixes: prefixDefault}
	switch m.Kind {
	case policy.IdentifyHeader:
		f.Name, f.Label = match.CanonicalHeader(m.Name), HeaderLabel(m.Name)
	case policy.IdentifyAttr:
		f.Label = AttrLabel(m.Name)
	case policy.IdentifyCookie:
		f.Label = CookieLabel(m.Name)
	case policy.IdentifyJWT, policy.IdentifyAPIKey:
		f.Verifier, f.carriers, f.Deny = m.Verifier, NewCarriers(m), m.DenyInvalid
		f.costly, _ = m.Verifier.(policy.CostlyVerifier)
	}
	f.Hashed = f.Label + policy.HashSuffix
	if m.IPv4Prefix != 0 {
		f.prefixes.V4 = m.IPv4Prefix
	}
	if m.IPv6Prefix != 0 {
		f.prefixes.V6 = m.IPv6Prefix
	}
	return f
}

// Identify determines the client and the address of the last request that was read. Identify
// returns CredentialAbsent, or the state of the credential for which the request is denied.
func (cl *Client) Identify(rules *Rules) (bad policy.CredentialState) {
	cl.Entry, cl.Uses = nil, cl.Uses[:0]
	cl.Request.Client = &cl.Identity
	if rules.Fixed != nil {
		cl.Identity = *rules.Fixed
		return policy.CredentialAbsent
	}
	cl.Request.Peer, cl.Request.Origin = rules.forwarding.Client(cl.Request.Attrs)
	bad = cl.findIdentity(rules)
	if cl.Identity.User == "" {
		cl.Identity.User = firstOf(&cl.Request, rules.users)
	}
	if cl.Identity.Tenant == "" {
		cl.Identity.Tenant = firstOf(&cl.Request, rules.tenants)
	}
	if cl.Identity.Tier == "" {
		cl.Identity.Tier = firstOf(&cl.Request, rules.tiers)
	}
	return bad
}

// findIdentity sets the client's identity, or the zero Identity if the client is unknown.
// findIdentity returns the state of the credential for which the request is denied. The identity is
// then zero, so that the request is not counted for another client. An identity is large, so
// findIdentity writes it in place.
func (cl *Client) findIdentity(rules *Rules) (bad policy.CredentialState) {
	cl.Identity = policy.Identity{}
	for i := range rules.Finders {
		f := &rules.Finders[i]
		if f.Verifier == nil {
			if cl.claimedIdentity(f); cl.Identity.Kind != "" {
				return policy.CredentialAbsent
			}
			continue
		}
		switch who, state := cl.verify(rules, i); state {
		case policy.CredentialAbsent:
		case policy.CredentialValid:
			cl.Identity = Bounded(*who)
			return policy.CredentialAbsent
		default:
			return state
		}
	}
	return policy.CredentialAbsent
}

// claimedIdentity reads the identity from a part of the request that needs no verification.
func (cl *Client) claimedIdentity(f *Finder) {
	value, ok := "", false
	switch f.Kind {
	case policy.IdentifyIP:
		if cl.Request.Peer.IsValid() {
			mark := len(cl.text)
			cl.text = AppendAddr(cl.text, cl.Request.Peer, f.prefixes)
			cl.Identity.Kind, cl.Identity.ID = f.Label, cl.textSince(mark)
		}
		return
	case policy.IdentifyHeader:
		value, ok = cl.Request.Attrs.Header(f.Name)
	case policy.IdentifyCookie:
		cookies, _ := cl.Request.Attrs.Header("Cookie")
		var state policy.CredentialState
		value, state = CookieValue(cookies, f.Name)
		ok = state == policy.CredentialValid
	default:
		value, ok = cl.Request.Attrs.Attr(f.Name)
	}
	switch {
	case !ok || value == "" || cl.Request.TooLong(value):
	case len(value) > policy.ValueBytesMax:
		mark := len(cl.text)
		cl.text = AppendHash(cl.text, value)
		cl.Identity.Kind, cl.Identity.ID = f.Hashed, cl.textSince(mark)
	default:
		cl.Identity.Kind, cl.Identity.ID = f.Label, value
	}
}

// Bounded returns the identity with an ID of bounded length. Penstock's verifiers bound the ID
// themselves, but other verifiers might not.
func Bounded(who policy.Identity) policy.Identity {
	if len(who.ID) > policy.ValueBytesMax {
		short := policy.IdentityOf(who.Kind, who.ID)
		who.Kind, who.ID = short.Kind, short.ID
	}
	return who
}

// textSince returns the text appended after the offset mark. Until Reset, the text never shrinks.
func (cl *Client) textSince(mark int) string {
	b := cl.text[mark:]
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// AppendAddr appends the address, or its prefix if that is shorter. The address is unmapped first,
// because otherwise all IPv4 clients would share the prefix of the mapped addresses.
func AppendAddr(dst []byte, addr netip.Addr, prefixes PrefixBits) []byte {
	bits := prefixes.V6
	if addr.Is4() {
		bits = prefixes.V4
	}
	if bits >= addr.BitLen() {
		return addr.AppendTo(dst)
	}
	if bits <= 64 && addr.Is6() {
		return appendHalf(dst, match.NewAddrKey(addr).High, bits)
	}
	prefix, err := addr.Prefix(bits)
	if err != nil { // cannot happen: Compile checked the bits
		return addr.AppendTo(dst)
	}
	return prefix.AppendTo(dst)
}

// appendHalf appends an IPv6 prefix of at most 64 bits as [netip.Prefix] writes it, in half the
// time. The groups of its right half are zero, so "::" is always at the end. Most IPv6 clients are
// counted by such a prefix.
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

// AppendHash appends the hash that replaces a value over the length bound.
func AppendHash(dst []byte, value string) []byte {
	sum := slim.SHA256(unsafe.Slice(unsafe.StringData(value), len(value)))
	return slim.AppendHex(dst, sum[:])
}

// HeaderLabel returns the kind of identities that come from the named request header.
func HeaderLabel(name string) string { return "header." + slim.LowerASCII(name) }

// CookieLabel returns the kind of identities that come from the named cookie.
func CookieLabel(name string) string { return "cookie." + name }

// AttrLabel returns the kind of an identity from an attribute.
func AttrLabel(name string) string { return "attr." + name }
