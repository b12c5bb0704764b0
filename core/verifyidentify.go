// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// identify checks everything that is about who is asking, and whether what is said of clients anywhere can be known.
func (v *verifier) identify() {
	v.forwarding()
	v.sources("user", v.policy.User)
	v.sources("tenant", v.policy.Tenant)
	v.sources("tier", v.policy.Tier)
	v.knowable()
	if n := len(v.policy.Identify); n > IdentifyMax {
		v.problem("identify", strconv.Itoa(n), fmt.Sprintf("are more than %d ways", IdentifyMax), "leave some out")
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
			v.problem(at, label, fmt.Sprintf("is identify[%d] again and finds nobody else", first), "leave it out")
			continue
		}
		seen[label] = i
	}
}

// identifyBy checks one way of identifying and returns what it is called in keys; "" if there may be several that are
// called so.
func (v *verifier) identifyBy(at string, m Identify) (label string, known bool) {
	switch m.Kind {
	case IdentifyIP:
		label = "ip"
		v.prefixes(at, m)
	case IdentifyHeader:
		label = headerLabel(m.Name)
		v.header(at, m.Name)
	case IdentifyCookie:
		label = cookieLabel(m.Name)
		v.cookie(at, m.Name)
	case IdentifyAttr:
		label = attrLabel(m.Name)
		v.attr(at, m.Name)
	case IdentifyJWT, IdentifyAPIKey:
		v.credentials(at, m)
	default:
		v.problem(at, strconv.Itoa(int(m.Kind)), "is an unknown way of identifying",
			"write ip, header, cookie, attr, jwt or api_key")
		return "", false
	}
	v.misplaced(at, m)
	return label, true
}

// identifyWords are what the ways of identifying are called in a policy.
var identifyWords = [...]string{IdentifyIP: "ip", IdentifyHeader: "header", IdentifyAttr: "attr",
	IdentifyCookie: "cookie", IdentifyJWT: "jwt", IdentifyAPIKey: "api_key"}

// misplaced reports what does not go with the kind.
func (v *verifier) misplaced(at string, m Identify) {
	word := identifyWords[m.Kind]
	proven := m.Kind == IdentifyJWT || m.Kind == IdentifyAPIKey
	claimed := m.Kind == IdentifyHeader || m.Kind == IdentifyCookie
	if m.Name != "" && (proven || m.Kind == IdentifyIP) {
		v.problem(at+".name", m.Name, "does not go with "+word, "leave it out")
	}
	if claimed && !m.Unverified {
		v.problem(at, m.Name, "is a "+word+" that anyone can write, and so be anyone",
			"write unverified: true if something in front sets or removes it")
	}
	if m.Unverified && !claimed {
		v.problem(at+".unverified", "true", "goes with header and cookie only", "leave it out")
	}
	if m.Kind != IdentifyIP && (m.IPv4Prefix != 0 || m.IPv6Prefix != 0) {
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

// credentials checks a way of identifying by something that is verified.
func (v *verifier) credentials(at string, m Identify) {
	if m.Verifier == nil {
		v.problem(at, identifyWords[m.Kind], "has nothing to verify credentials with",
			"name its keys: jwks_file, jwks_url, secret or secret_file for jwt, keys_file for api_key")
	}
	if n := len(m.From); n > carriersMax {
		v.problem(at+".from", strconv.Itoa(n), fmt.Sprintf("are more than %d places", carriersMax), "leave some out")
		return
	}
	for i, c := range m.From {
		place := fmt.Sprintf("%s.from[%d]", at, i)
		switch c.Kind {
		case FromBearer:
			if c.Name != "" {
				v.problem(place, c.Name, "is a name, which a bearer token does not have", "leave it out")
			}
		case FromHeader:
			v.header(place, c.Name)
			c.Name = canonicalHeader(c.Name)
		case FromQuery:
			if c.Name == "" || len(c.Name) > labelBytesMax || strings.ContainsFunc(c.Name, isControl) {
				v.problem(place, shortened(c.Name), "is not the name of a query parameter", "write one such as key, not encoded")
			}
		case FromCookie:
			v.cookie(place, c.Name)
		default:
			v.problem(place, strconv.Itoa(int(c.Kind)), "is an unknown place", "write bearer, header, query or cookie")
		}
		if first := slices.IndexFunc(m.From[:i], func(o CredentialSource) bool {
			return o.Kind == c.Kind && (o.Name == c.Name || c.Kind == FromHeader && canonicalHeader(o.Name) == c.Name)
		}); first >= 0 {
			v.problem(place, c.Name, fmt.Sprintf("is from[%d] again", first), "leave it out")
		}
	}
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// shortened is a value as problems show it.
func shortened(text string) string {
	if len(text) > NameBytesMax {
		return text[:NameBytesMax] + "…"
	}
	return text
}

// forwarding checks whose word about addresses is believed.
func (v *verifier) forwarding() {
	p := v.policy
	if len(p.TrustedProxies) > 0 && p.TrustedHops != 0 {
		v.problem("trusted_hops", strconv.Itoa(p.TrustedHops), "does not go with trusted_proxies: each of them says which "+
			"address is the client's", "leave one of them out; trusted_proxies is the safer if all proxies' addresses are known")
	}
	if p.TrustedHops < 0 || p.TrustedHops > forwardedMax {
		v.problem("trusted_hops", strconv.Itoa(p.TrustedHops), "is no number of proxies",
			fmt.Sprintf("write how many stand in front, 1 to %d; leave it out for none", forwardedMax))
	}
	if !v.bounded("trusted_proxies", "", len(p.TrustedProxies)) {
		return
	}
	v.ranges("trusted_proxies", p.TrustedProxies)
	trusted, ok := compilePrefixes(p.TrustedProxies)
	if !ok {
		return
	}
	for i, prefix := range trusted {
		place := fmt.Sprintf("trusted_proxies[%d]", i)
		if prefix.Bits() == 0 {
			v.problem(place, prefix.String(), "trusts everybody, so that each client names the address it is counted by",
				"write the ranges of your proxies")
		}
		if first := slices.Index(trusted[:i], prefix); first >= 0 {
			v.problem(place, prefix.String(), fmt.Sprintf("is trusted_proxies[%d] again", first), "leave it out")
		}
	}
}

// sources checks where users, tenants or tiers are taken from.
func (v *verifier) sources(at string, sources []Source) {
	if n := len(sources); n > sourcesMax {
		v.problem(at, strconv.Itoa(n), fmt.Sprintf("are more than %d sources", sourcesMax), "leave some out")
		return
	}
	made := newSources(sources)
	for i, s := range sources {
		place := fmt.Sprintf("%s[%d]", at, i)
		v.source(place, s)
		if first := slices.Index(made[:i], made[i]); first >= 0 {
			v.problem(place, s.Name, fmt.Sprintf("is %s[%d] again", at, first), "leave it out")
		}
	}
}

func (v *verifier) source(at string, s Source) {
	switch s.Kind {
	case SourceAttr:
		v.attr(at, s.Name)
	case SourceHeader:
		v.header(at, s.Name)
		if !s.Unverified {
			v.problem(at, s.Name, "is a header that anyone can write",
				"write unverified: true if something in front sets or removes it")
		}
	case SourceHost:
		if s.Label < 1 || s.Label > hostLabelMax {
			v.problem(at+".host_label", strconv.Itoa(s.Label), "is no label of a host",
				fmt.Sprintf("write 1 for the left-most, to %d", hostLabelMax))
		}
		if s.Name != "" {
			v.problem(at, s.Name, "is a name, which host_label does not take", "leave it out")
		}
	default:
		v.problem(at, strconv.Itoa(int(s.Kind)), "is an unknown source", "write attr, header or host_label")
		return
	}
	if s.Kind != SourceHost && s.Label != 0 {
		v.problem(at+".host_label", strconv.Itoa(s.Label), "stands beside a name", "leave one of them out")
	}
	if s.Kind != SourceHeader && s.Unverified {
		v.problem(at+".unverified", "true", "goes with header only", "leave it out")
	}
}

// knows reports whether the policy can ever know that of a client.
func (v *verifier) knows(f clientField) bool {
	key := v.identifiesBy(IdentifyAPIKey)
	token := v.identifiesBy(IdentifyJWT)
	switch f {
	case clientAPIKey:
		return key
	case clientUser:
		return key || token || len(v.policy.User) > 0
	case clientTenant:
		return key || token || len(v.policy.Tenant) > 0
	default:
		return key || token || len(v.policy.Tier) > 0
	}
}

func (v *verifier) identifiesBy(kind IdentifyKind) bool {
	return slices.ContainsFunc(v.policy.Identify, func(m Identify) bool { return m.Kind == kind })
}

// unknowable reports that the policy says something at the place that it can know of nobody.
func (v *verifier) unknowable(place string, f clientField) {
	remedy := map[clientField]string{clientAPIKey: "add api_key to identify",
		clientUser:   "say where users come from: user, or jwt or api_key in identify",
		clientTenant: "say where tenants come from: tenant, or jwt or api_key in identify",
		clientTier:   "say where tiers come from: tier, or jwt or api_key in identify"}[f]
	v.problem(place, "", "can never be known: no way of identifying a client tells its "+clientWords[f], remedy)
}

// knowable checks that matches and lists ask for nothing that no client can have.
func (v *verifier) knowable() {
	p := v.policy
	match := func(at string, m *Match) {
		for f, values := range [clientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
			if len(values) > 0 && !v.knows(clientField(f)) {
				v.unknowable(at+".match."+clientWords[f], clientField(f))
			}
		}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		match(ruleAt(i), &r.Match)
		for j := range r.Cost {
			match(fmt.Sprintf("%s.cost[%d]", ruleAt(i), j), &r.Cost[j].Match)
		}
	}
	lists := func(at string, entries []Listed) {
		for i := range entries {
			for f, values := range entries[i].byField() {
				if len(values) > 0 && !v.knows(clientField(f)) {
					v.unknowable(fmt.Sprintf("%s[%d].%s", at, i, clientWords[f]), clientField(f))
				}
			}
		}
	}
	lists("exempt", p.Exempt)
	lists("block", p.Block)
}

func (v *verifier) prefixes(at string, m Identify) {
	if m.IPv4Prefix < 0 || m.IPv4Prefix > 32 {
		v.problem(at+".ipv4_prefix", strconv.Itoa(m.IPv4Prefix), "is no length of an IPv4 prefix", "write 1 to 32")
	}
	if m.IPv6Prefix < 0 || m.IPv6Prefix > 128 {
		v.problem(at+".ipv6_prefix", strconv.Itoa(m.IPv6Prefix), "is no length of an IPv6 prefix", "write 1 to 128")
	}
}

func (v *verifier) header(at, name string) {
	switch {
	case name == "" || strings.ContainsFunc(name, notToken):
		v.problem(at, name, "is not the name of a header", "write one such as X-User")
	case canonicalHeader(name) == "Host":
		v.problem(at, name, "is not among a request's header fields", "a rule can count per host")
	default:
		v.label(at, name)
	}
}

func (v *verifier) cookie(at, name string) {
	if name == "" || strings.ContainsFunc(name, notToken) {
		v.problem(at, shortened(name), "is not the name of a cookie", "write one such as session")
		return
	}
	v.label(at, name)
}

func (v *verifier) attr(at, name string) {
	switch {
	case name == "" || strings.ContainsFunc(name, isControl):
		v.problem(at, name, "is not the name of an attribute", "write attr: and a name that the proxy knows")
	default:
		v.label(at, name)
	}
}

// labelBytesMax bounds the name of a header or attribute, for it stands in keys.
const labelBytesMax = headerNameBytesMax

// label checks the name of a header, cookie or attribute as it is to stand in keys.
func (v *verifier) label(at, name string) {
	if len(name) > labelBytesMax {
		v.problem(at, name[:NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(name)),
			fmt.Sprintf("write at most %d", labelBytesMax))
	}
	if strings.HasSuffix(strings.ToLower(name), hashSuffix) {
		v.problem(at, name, "ends in "+hashSuffix+", which marks the hashes that stand for long values", "use another name")
	}
}
