// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// checkIdentify checks how the policy identifies clients, and whether these methods provide every
// property of a client that the policy uses.
func (v *Verifier) checkIdentify() {
	v.checkForwarding()
	v.checkSources("user", v.policy.User)
	v.checkSources("tenant", v.policy.Tenant)
	v.checkSources("tier", v.policy.Tier)
	v.checkKnowable()
	if n := len(v.policy.Identify); n > policy.IdentifyMax {
		v.problem("identify", strconv.Itoa(n), fmt.Sprintf("are more than %d ways", policy.IdentifyMax), "leave some out")
		return
	}
	seen := map[string]int{}
	for i, m := range v.policy.Identify {
		at := "identify[" + strconv.Itoa(i) + "]"
		label, known := v.identifyBy(at, m)
		if !known {
			continue
		}
		if first, twice := seen[label]; twice && label != "" {
			v.problem(at, label, fmt.Sprintf("is identify[%d] again and finds no other client", first), "leave it out")
			continue
		}
		seen[label] = i
	}
}

// identifyBy checks one way to identify a client and returns its kind in keys. identifyBy returns
// "" for a kind that several ways can share.
func (v *Verifier) identifyBy(at string, m policy.Identify) (label string, known bool) {
	switch m.Kind {
	case policy.IdentifyIP:
		label = "ip"
		v.prefixes(at, m)
	case policy.IdentifyHeader:
		label = identify.HeaderLabel(m.Name)
		v.header(at, m.Name)
	case policy.IdentifyCookie:
		label = identify.CookieLabel(m.Name)
		v.cookie(at, m.Name)
	case policy.IdentifyAttr:
		label = identify.AttrLabel(m.Name)
		v.attr(at, m.Name)
	case policy.IdentifyJWT, policy.IdentifyAPIKey:
		v.checkCredentials(at, m)
	default:
		v.problem(at, strconv.Itoa(int(m.Kind)), "is an unknown way of identifying",
			"write ip, header, cookie, attr, jwt or api_key")
		return "", false
	}
	v.reportMisplaced(at, m)
	return label, true
}

// reportMisplaced reports fields that the kind does not use.
func (v *Verifier) reportMisplaced(at string, m policy.Identify) {
	word := policy.IdentifyWords[m.Kind]
	proven := m.Kind == policy.IdentifyJWT || m.Kind == policy.IdentifyAPIKey
	claimed := m.Kind == policy.IdentifyHeader || m.Kind == policy.IdentifyCookie
	if m.Name != "" && (proven || m.Kind == policy.IdentifyIP) {
		v.problem(at+".name", m.Name, "does not go with "+word, "leave it out")
	}
	if claimed && !m.Unverified {
		v.problem(at, m.Name, "is a "+word+" that clients can set, so each can pose as any other",
			"write unverified: true if something in front sets or removes it")
	}
	if m.Unverified && !claimed {
		v.problem(at+".unverified", "true", "goes with header and cookie only", "leave it out")
	}
	if m.Kind != policy.IdentifyIP && (m.IPv4Prefix != 0 || m.IPv6Prefix != 0) {
		v.problem(at, "", "has a prefix, which goes with ip only", "leave it out")
	}
	if proven {
		return
	}
	if len(m.From) > 0 {
		v.problem(at+".from", "", "goes with jwt and api_key only", "leave it out")
	}
	if m.Verifier != nil {
		v.problem(at+".verifier", "", "goes with jwt and api_key only", "leave it out")
	}
	if m.DenyInvalid {
		v.problem(at+".on_invalid", "deny", "goes with jwt and api_key only: a "+word+" is not verified", "leave it out")
	}
}

// checkCredentials checks a way to identify a client by a verified credential.
func (v *Verifier) checkCredentials(at string, m policy.Identify) {
	if m.Verifier == nil {
		v.problem(at, policy.IdentifyWords[m.Kind], "has no keys to verify credentials with",
			"name its keys: jwks_file, jwks_url, secret or secret_file for jwt, keys_file for api_key")
	}
	if n := len(m.From); n > identify.CarriersMax {
		v.problem(at+".from", strconv.Itoa(n), fmt.Sprintf("are more than %d places", identify.CarriersMax), "leave some out")
		return
	}
	for i, c := range m.From {
		place := fmt.Sprintf("%s.from[%d]", at, i)
		switch c.Kind {
		case policy.FromBearer:
			if c.Name != "" {
				v.problem(place, c.Name, "is a name, which a bearer token does not have", "leave it out")
			}
		case policy.FromHeader:
			v.header(place, c.Name)
			c.Name = match.CanonicalHeader(c.Name)
		case policy.FromQuery:
			if c.Name == "" || len(c.Name) > labelBytesMax || strings.ContainsFunc(c.Name, isControl) {
				v.problem(place, shortenValue(c.Name), "is not the name of a query parameter", "write one such as key, not encoded")
			}
		case policy.FromCookie:
			v.cookie(place, c.Name)
		default:
			v.problem(place, strconv.Itoa(int(c.Kind)), "is an unknown place", "write bearer, header, query or cookie")
		}
		if first := slices.IndexFunc(m.From[:i], func(o policy.CredentialSource) bool {
			return o.Kind == c.Kind && (o.Name == c.Name || c.Kind == policy.FromHeader && match.CanonicalHeader(o.Name) == c.Name)
		}); first >= 0 {
			v.problem(place, c.Name, fmt.Sprintf("is from[%d] again", first), "leave it out")
		}
	}
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// shortenValue returns the value in the shortened form that problems show.
func shortenValue(text string) string {
	if len(text) > policy.NameBytesMax {
		return text[:policy.NameBytesMax] + "…"
	}
	return text
}

// checkForwarding checks the trusted proxies.
func (v *Verifier) checkForwarding() {
	p := v.policy
	if len(p.TrustedProxies) > 0 && p.TrustedHops != 0 {
		v.problem("trusted_hops", strconv.Itoa(p.TrustedHops), "does not go with trusted_proxies: each of them says which "+
			"address is the client's", "leave one of them out; trusted_proxies is the safer if all proxies' addresses are known")
	}
	if p.TrustedHops < 0 || p.TrustedHops > identify.ForwardedMax {
		v.problem("trusted_hops", strconv.Itoa(p.TrustedHops), "is not a number of proxies",
			fmt.Sprintf("write the number of proxies in front, 1 to %d; leave it out for none", identify.ForwardedMax))
	}
	if !v.checkBounded("trusted_proxies", "", len(p.TrustedProxies)) {
		return
	}
	v.checkRanges("trusted_proxies", p.TrustedProxies)
	trusted, ok := match.CompilePrefixes(p.TrustedProxies)
	if !ok {
		return
	}
	for i, prefix := range trusted {
		place := fmt.Sprintf("trusted_proxies[%d]", i)
		if prefix.Bits() == 0 {
			v.problem(place, prefix.String(), "trusts every client to name the address it is counted by",
				"write the ranges of your proxies")
		}
		if first := slices.Index(trusted[:i], prefix); first >= 0 {
			v.problem(place, prefix.String(), fmt.Sprintf("is trusted_proxies[%d] again", first), "leave it out")
		}
	}
}

// checkSources checks the sources of users, tenants or tiers.
func (v *Verifier) checkSources(at string, sources []policy.Source) {
	if n := len(sources); n > identify.SourcesMax {
		v.problem(at, strconv.Itoa(n), fmt.Sprintf("are more than %d sources", identify.SourcesMax), "leave some out")
		return
	}
	made := identify.NewSources(sources)
	for i, s := range sources {
		place := fmt.Sprintf("%s[%d]", at, i)
		v.source(place, s)
		if first := slices.Index(made[:i], made[i]); first >= 0 {
			v.problem(place, s.Name, fmt.Sprintf("is %s[%d] again", at, first), "leave it out")
		}
	}
}

func (v *Verifier) source(at string, s policy.Source) {
	switch s.Kind {
	case policy.SourceAttr:
		v.attr(at, s.Name)
	case policy.SourceHeader:
		v.header(at, s.Name)
		if !s.Unverified {
			v.problem(at, s.Name, "is a header that clients can set",
				"write unverified: true if something in front sets or removes it")
		}
	case policy.SourceHost:
		if s.Label < 1 || s.Label > identify.HostLabelMax {
			v.problem(at+".host_label", strconv.Itoa(s.Label), "is not a label of a host",
				fmt.Sprintf("write 1 for the left-most, to %d", identify.HostLabelMax))
		}
		if s.Name != "" {
			v.problem(at, s.Name, "is a name, which host_label does not take", "leave it out")
		}
	default:
		v.problem(at, strconv.Itoa(int(s.Kind)), "is an unknown source", "write attr, header or host_label")
		return
	}
	if s.Kind != policy.SourceHost && s.Label != 0 {
		v.problem(at+".host_label", strconv.Itoa(s.Label), "conflicts with a name", "leave one of them out")
	}
	if s.Kind != policy.SourceHeader && s.Unverified {
		v.problem(at+".unverified", "true", "goes with header only", "leave it out")
	}
}

// canKnow reports whether some method can provide the client field.
func (v *Verifier) canKnow(f match.ClientField) bool {
	key := v.identifiesBy(policy.IdentifyAPIKey)
	token := v.identifiesBy(policy.IdentifyJWT)
	switch f {
	case match.ClientAPIKey:
		return key
	case match.ClientUser:
		return key || token || len(v.policy.User) > 0
	case match.ClientTenant:
		return key || token || len(v.policy.Tenant) > 0 || v.policy.Directory
	default:
		return key || token || len(v.policy.Tier) > 0 || v.policy.Directory
	}
}

func (v *Verifier) identifiesBy(kind policy.IdentifyKind) bool {
	return slices.ContainsFunc(v.policy.Identify, func(m policy.Identify) bool { return m.Kind == kind })
}

// reportUnknowable reports that the policy uses a field of the client which none of its methods can
// provide.
func (v *Verifier) reportUnknowable(place string, f match.ClientField) {
	remedy := map[match.ClientField]string{match.ClientAPIKey: "add api_key to identify",
		match.ClientUser:   "configure the source of users: user, or jwt or api_key in identify",
		match.ClientTenant: "configure the source of tenants: tenant, or jwt or api_key in identify",
		match.ClientTier:   "configure the source of tiers: tier, or jwt or api_key in identify"}[f]
	v.problem(place, "", "can never be known: no method of identify provides its "+clientWords[f], remedy)
}

// checkKnowable checks that some method provides each field of the client that matches and lists
// use.
func (v *Verifier) checkKnowable() {
	p := v.policy
	m := func(at string, m *policy.Match) {
		for f, values := range [match.ClientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
			if len(values) > 0 && !v.canKnow(match.ClientField(f)) {
				v.reportUnknowable(at+".match."+clientWords[f], match.ClientField(f))
			}
		}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		m(policy.RuleAt(i), &r.Match)
		for j := range r.Cost {
			m(fmt.Sprintf("%s.cost[%d]", policy.RuleAt(i), j), &r.Cost[j].Match)
		}
	}
	lists := func(at string, entries []policy.Listed) {
		for i := range entries {
			for f, values := range identify.ByField(&entries[i]) {
				if len(values) > 0 && !v.canKnow(match.ClientField(f)) {
					v.reportUnknowable(fmt.Sprintf("%s[%d].%s", at, i, clientWords[f]), match.ClientField(f))
				}
			}
		}
	}
	lists("exempt", p.Exempt)
	lists("block", p.Block)
}

func (v *Verifier) prefixes(at string, m policy.Identify) {
	if m.IPv4Prefix < 0 || m.IPv4Prefix > 32 {
		v.problem(at+".ipv4_prefix", strconv.Itoa(m.IPv4Prefix), "is not a length of an IPv4 prefix", "write 1 to 32")
	}
	if m.IPv6Prefix < 0 || m.IPv6Prefix > 128 {
		v.problem(at+".ipv6_prefix", strconv.Itoa(m.IPv6Prefix), "is not a length of an IPv6 prefix", "write 1 to 128")
	}
}

func (v *Verifier) header(at, name string) {
	switch {
	case name == "" || strings.ContainsFunc(name, match.NotToken):
		v.problem(at, name, "is not the name of a header", "write one such as X-User")
	case match.CanonicalHeader(name) == "Host":
		v.problem(at, name, notAField, "a rule can count per host")
	case isRemoved(name):
		v.problem(at, name, notAField, removedRemedy)
	default:
		v.checkLabel(at, name)
	}
}

func (v *Verifier) cookie(at, name string) {
	if name == "" || strings.ContainsFunc(name, match.NotToken) {
		v.problem(at, shortenValue(name), "is not the name of a cookie", "write one such as session")
		return
	}
	v.checkLabel(at, name)
}

func (v *Verifier) attr(at, name string) {
	switch {
	case name == "" || strings.ContainsFunc(name, isControl):
		v.problem(at, name, "is not the name of an attribute", "write attr: and a name that the proxy knows")
	default:
		v.checkLabel(at, name)
	}
}

// labelBytesMax bounds the name of a header or attribute, because keys contain it.
const labelBytesMax = match.HeaderNameBytesMax

// checkLabel checks the name of a header, cookie or attribute that keys contain.
func (v *Verifier) checkLabel(at, name string) {
	if len(name) > labelBytesMax {
		v.problem(at, name[:policy.NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(name)),
			fmt.Sprintf("write at most %d", labelBytesMax))
	}
	if strings.HasSuffix(strings.ToLower(name), policy.HashSuffix) {
		v.problem(at, name, "ends in "+policy.HashSuffix+", which marks hashes of long values", "use another name")
	}
}
