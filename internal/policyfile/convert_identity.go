// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

func (c *converter) identify(path string, d *Identify) (id policy.Identify) {
	switch {
	case d.IP != nil:
		id.IPv4Prefix = c.bits(path+".ip.ipv4_prefix", d.IP.IPv4Prefix, 32)
		id.IPv6Prefix = c.bits(path+".ip.ipv6_prefix", d.IP.IPv6Prefix, 128)
	case d.Header != nil:
		id.Kind = policy.IdentifyHeader
		id.Name, id.Unverified = textproto.CanonicalMIMEHeaderKey(d.Header.Name), d.Header.Unverified
	case d.Cookie != nil:
		id.Kind, id.Name, id.Unverified = policy.IdentifyCookie, d.Cookie.Name, d.Cookie.Unverified
	case d.Attr != "":
		c.claimedIdentity(path+".attr", d.Attr)
		id.Kind, id.Name = policy.IdentifyAttr, d.Attr
	case d.JWT != nil:
		c.jwt(path+".jwt", d.JWT)
		id.Kind = policy.IdentifyJWT
		id.From = c.credential(path+".jwt", d)
		id.DenyInvalid = choose(c, path+".jwt.on_invalid", d.JWT.OnInvalid, onInvalids)
	case d.APIKey != nil:
		c.keys(path+".api_key", d.APIKey)
		id.Kind = policy.IdentifyAPIKey
		id.From = c.credential(path+".api_key", d)
		id.DenyInvalid = choose(c, path+".api_key.on_invalid", d.APIKey.OnInvalid, onInvalids)
	default:
		c.problem(path, "", "says nothing", identifyRemedy)
	}
	return id
}

// keysInDirectory is the only value of IdentifyAPIKey.Keys.
const keysInDirectory = "directory"

// InDirectory reports whether keys are looked up in the directory.
func (k *IdentifyAPIKey) InDirectory() bool { return k.Keys == keysInDirectory }

// KeysInDirectory reports whether the policy has API keys that are looked up in the directory.
func (d *Document) KeysInDirectory() bool {
	return slices.ContainsFunc(d.Identify, func(i Identify) bool { return i.APIKey != nil && i.APIKey.InDirectory() })
}

func (c *converter) keys(path string, d *IdentifyAPIKey) {
	switch _, ok := syntax.FormatOf(d.KeysFile); {
	case d.Keys != "" && !d.InDirectory():
		c.problem(path+".keys", d.Keys, "is not a place of keys", "write keys: directory, or name a file with keys_file")
	case d.KeysFile == "" && d.Keys == "":
		c.problem(path+".keys_file", "", "is missing", "write the file with the hashes of the keys, or keys: directory")
	case d.KeysFile != "" && !ok:
		c.problem(path+".keys_file", d.KeysFile, "has an unknown extension", "name it .toml, .yaml, .yml or .json")
	}
}

func (c *converter) bits(path string, prefix *int, most int) int {
	if prefix == nil {
		return 0
	}
	if *prefix < 1 || *prefix > most {
		c.problem(path, fmt.Sprint(*prefix), fmt.Sprintf("is not between 1 and %d", most), "")
		return 0
	}
	return *prefix
}

// converter.credential returns the places where a request can carry the credential: headers,
// cookies, query parameters, or the bearer token.
func (c *converter) credential(path string, d *Identify) (from []policy.CredentialSource) {
	for _, p := range d.places() {
		if p.from.Kind == policy.FromHeader && p.from.Name == "Authorization" {
			c.problem(path+".header", p.from.Name, "contains \"Bearer\" beside the token", "write bearer: true")
		}
		from = append(from, p.from)
	}
	return from
}

var (
	secretAlgorithms = []string{"HS256", "HS384", "HS512"}
	keySetAlgorithms = []string{"RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA"}
)

// Bounds of the durations in a block "jwt".
const (
	// a greater leeway would make the expiry of short-lived tokens meaningless
	leewayMax  = 5 * counter.Minute
	refreshMin = counter.Second
	refreshMax = counter.Day // a removed key may be accepted for that time
)

// converter.jwt reports invalid values of the fields that only the token verifier uses.
func (c *converter) jwt(path string, d *IdentifyJWT) {
	const remedy = "write one of jwks_file, jwks_url, secret_file and secret"
	isKeySet, sources := d.JWKSFile != "" || d.JWKSURL != "", 0
	for _, source := range []string{d.JWKSFile, d.JWKSURL, d.SecretFile, d.Secret} {
		if source != "" {
			sources++
		}
	}
	switch {
	case sources == 0:
		c.problem(path, "", "has no keys to verify its tokens with", remedy)
	case sources > 1:
		c.problem(path, "", "has more than one source of keys", remedy)
	default:
		c.algorithms(path+".algorithms", d.Algorithms, isKeySet)
		c.secret(path+".secret", d.Secret, d.Algorithms)
		if d.Refresh != "" && d.JWKSURL == "" {
			c.problem(path+".refresh", d.Refresh, "has no effect without jwks_url: files are read again when they change",
				"leave it out")
		}
	}
	if d.JWKSURL != "" {
		c.keySetURL(path+".jwks_url", d.JWKSURL)
	}
	c.span(path+".leeway", d.Leeway, 0, leewayMax)
	c.span(path+".refresh", d.Refresh, refreshMin, refreshMax)
}

func (c *converter) algorithms(path string, names Words, isKeySet bool) {
	good, other, why := secretAlgorithms, keySetAlgorithms, "needs a key set, but a secret is given"
	if isKeySet {
		good, other, why = other, good, "needs a secret, but a key set is given, and its public keys are known to everyone"
	}
	for i, name := range names {
		switch at := Index(path, i); {
		case slices.Contains(names[:i], name):
			c.problem(at, name, "is listed twice", "keep one of them")
		case slices.Contains(good, name):
		case slices.Contains(other, name):
			c.problem(at, name, why, "write "+listAlternatives(good))
		case strings.EqualFold(name, "none"):
			c.problem(at, name, "is not a signature: any client could pose as any other", "write "+listAlternatives(good))
		default:
			c.problem(at, name, "is not a known value", "write "+listAlternatives(good))
		}
	}
}

// converter.secret reports a secret in the policy if the token verifier would reject it. The
// problem never contains the secret.
func (c *converter) secret(path, text string, algorithms Words) {
	_, fromEnvironment := Environment(text)
	if text == "" || fromEnvironment {
		return
	}
	if strings.HasPrefix(text, "{env.") {
		c.problem(path, "", "begins like an environment variable but does not end like one", `write "{env.NAME}"`)
		return
	}
	if len(algorithms) == 0 {
		algorithms = secretAlgorithms[:1]
	}
	for _, name := range algorithms {
		// The number of bits of the hash. A secret must not be shorter than the hash.
		bits, err := strconv.Atoi(strings.TrimPrefix(name, "HS"))
		if err == nil && slices.Contains(secretAlgorithms, name) && len(text) < bits/8 {
			c.problem(path, "", fmt.Sprintf("has %d bytes, and %s needs %d", len(text), name, bits/8),
				fmt.Sprintf("make one with openssl rand -base64 %d", bits/8))
			return
		}
	}
}

// keySetURL reports a URL that cannot serve a key set.
func (c *converter) keySetURL(path, text string) {
	if _, fromEnvironment := Environment(text); fromEnvironment {
		return // its value is checked when the verifier is opened
	}
	u, err := url.Parse(text)
	switch {
	case err != nil: // the error repeats the text, which might contain a password
		c.problem(path, "", "is not a URL", "write one that begins with https://")
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		c.problem(path, u.Redacted(), "is not the URL of a key set", "write one that begins with https://")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		c.problem(path, u.Redacted(), "is not encrypted: an attacker on the network could insert keys",
			"write https:// (http:// goes with 127.0.0.1, ::1 and localhost only)")
	}
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

func (c *converter) sources(path string, list Sources) (sources []policy.Source) {
	for i := range list {
		at, d := Index(path, i), &list[i]
		switch {
		case d.Header != nil:
			sources = append(sources, policy.Source{Kind: policy.SourceHeader,
				Name: textproto.CanonicalMIMEHeaderKey(d.Header.Name), Unverified: d.Header.Unverified})
		case d.HostLabel != nil:
			sources = append(sources, policy.Source{Kind: policy.SourceHost, Label: c.atLeastOne(at+".host_label", d.HostLabel)})
		case d.Attr != "":
			c.claimedSource(at+".attr", d.Attr)
			sources = append(sources, policy.Source{Kind: policy.SourceAttr, Name: d.Attr})
		default:
			c.problem(at, "", "says nothing", sourceRemedy)
			sources = append(sources, policy.Source{})
		}
	}
	return sources
}

func (c *converter) lists(path string, list Lists) (entries []policy.Listed) {
	for i := range list {
		at, d := Index(path, i), &list[i]
		entries = append(entries, policy.Listed{IP: c.prefixes(at+".ip", d.IP), User: d.User, APIKey: d.APIKey, Tier: d.Tier,
			Tenant: d.Tenant, Reason: d.Reason, Until: c.date(at+".until", string(d.Until))})
	}
	return entries
}

// converter.date reads an instant; 0 means none.
func (c *converter) date(path, text string) counter.Micros {
	if text == "" {
		return 0
	}
	const example = "2026-12-01T00:00:00Z"
	instant, err := time.Parse(time.RFC3339, text)
	if err == nil && instant.UnixMicro() > 0 {
		return counter.Micros(instant.UnixMicro())
	}
	why, remedy := "is not a date and time of RFC 3339", "write one such as "+example
	if _, err := time.Parse(time.DateOnly, text); err == nil {
		why, remedy = "has no time and no zone", "write "+text+"T00:00:00Z, or another zone in place of Z"
	} else if _, err := time.Parse("2006-01-02T15:04:05", text); err == nil {
		why, remedy = "has no zone", "write "+text+"Z, or another zone in place of Z"
	}
	c.problem(path, text, why, remedy)
	return 0
}

// converter.timezone returns a zone by its name; nil for UTC.
func (c *converter) timezone(path, name string) *time.Location {
	if name == "" {
		return nil
	}
	const remedy = "write one such as Europe/Berlin or UTC"
	if name == "Local" {
		c.problem(path, name, "depends on the machine, and machines differ", remedy)
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		c.problem(path, name, "is not a time zone", remedy)
		return nil
	}
	return zone
}

// converter.span reads a duration and checks its bounds; an empty text is 0.
func (c *converter) span(path, text string, least, most counter.Micros) counter.Micros {
	if text == "" {
		return 0
	}
	span, err := parseSpan(text)
	if err != nil {
		c.limit(path, text, err)
		return 0
	}
	if span < least || span > most {
		c.problem(path, text, fmt.Sprintf("is out of bounds: it must be between %s and %s", SpanText(least), SpanText(most)), "")
	}
	return span
}

func (c *converter) prefixes(path string, texts Words) (prefixes []netip.Prefix) {
	for i, text := range texts {
		if prefix, ok := c.prefix(Index(path, i), text); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// converter.prefix returns the address range in the text. It reports a text that is not an address
// range.
func (c *converter) prefix(path, text string) (netip.Prefix, bool) {
	prefix, why, remedy := ReadPrefix(text)
	if why != "" {
		c.problem(path, text, why, remedy)
	}
	return prefix, why == ""
}

// ReadPrefix parses an address or an address range. If why is not empty, the text is neither.
func ReadPrefix(text string) (prefix netip.Prefix, why, remedy string) {
	const form = "write 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32"
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return netip.Prefix{}, "is not an IP address or CIDR range", form
		}
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), "", ""
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, "is an IPv4 address written as IPv6", "write the IPv4 range"
	}
	if masked := prefix.Masked(); masked != prefix {
		return netip.Prefix{}, "has an address beyond its range", "write " + masked.String()
	}
	return prefix, "", ""
}
