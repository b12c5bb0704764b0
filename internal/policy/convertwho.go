// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
)

func (c *converter) identify(path string, d *Identify) (id core.Identify) {
	switch {
	case d.IP != nil:
		id.IPv4Prefix = c.bits(path+".ip.ipv4_prefix", d.IP.IPv4Prefix, 32)
		id.IPv6Prefix = c.bits(path+".ip.ipv6_prefix", d.IP.IPv6Prefix, 128)
	case d.Header != nil:
		id.Kind = core.IdentifyHeader
		id.Name, id.Unverified = textproto.CanonicalMIMEHeaderKey(d.Header.Name), d.Header.Unverified
	case d.Cookie != nil:
		id.Kind, id.Name, id.Unverified = core.IdentifyCookie, d.Cookie.Name, d.Cookie.Unverified
	case d.Attr != "":
		c.claimedIdentity(path+".attr", d.Attr)
		id.Kind, id.Name = core.IdentifyAttr, d.Attr
	case d.JWT != nil:
		c.jwt(path+".jwt", d.JWT)
		id.Kind = core.IdentifyJWT
		id.From = c.credential(path+".jwt", d)
		id.DenyInvalid = choose(c, path+".jwt.on_invalid", d.JWT.OnInvalid, onInvalids)
	case d.APIKey != nil:
		c.keysFile(path+".api_key.keys_file", d.APIKey.KeysFile)
		id.Kind = core.IdentifyAPIKey
		id.From = c.credential(path+".api_key", d)
		id.DenyInvalid = choose(c, path+".api_key.on_invalid", d.APIKey.OnInvalid, onInvalids)
	default:
		c.problem(path, "", "says nothing", identifyRemedy)
	}
	return id
}

func (c *converter) keysFile(path, name string) {
	if name == "" {
		c.problem(path, "", "is missing", "write the file with the hashes of the keys")
	} else if _, ok := FormatOf(name); !ok {
		c.problem(path, name, "has an extension that says no format", "name it .toml, .yaml, .yml or .json")
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

// credential returns the places that a credential is looked for in.
func (c *converter) credential(path string, d *Identify) (from []core.CredentialSource) {
	for _, p := range d.places() {
		if p.from.Kind == core.FromHeader && p.from.Name == "Authorization" {
			c.problem(path+".header", p.from.Name, "holds the word Bearer beside the token", "write bearer: true")
		}
		from = append(from, p.from)
	}
	return from
}

var (
	secretAlgorithms = []string{"HS256", "HS384", "HS512"}
	keySetAlgorithms = []string{"RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA"}
)

// Bounds of the spans of a token's words.
const (
	leewayMax  = 5 * core.Minute // more makes the expiry of short-lived tokens mean nothing
	refreshMin = core.Second
	refreshMax = core.Day // a key that was withdrawn is believed for that long
)

// jwt reports what is wrong with the words that only concern the verifier of tokens.
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
		c.problem(path, "", "does not say with which keys its tokens are signed", remedy)
	case sources > 1:
		c.problem(path, "", "says in more than one way with which keys its tokens are signed", remedy)
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
	good, other, why := secretAlgorithms, keySetAlgorithms, "needs a key set, and there is a secret"
	if isKeySet {
		good, other, why = other, good, "needs a secret, and there is a key set: its public keys would do as secrets"
	}
	for i, name := range names {
		switch at := index(path, i); {
		case slices.Contains(names[:i], name):
			c.problem(at, name, "stands here twice", "keep one of them")
		case slices.Contains(good, name):
		case slices.Contains(other, name):
			c.problem(at, name, why, "write "+alternatives(good))
		case strings.EqualFold(name, "none"):
			c.problem(at, name, "is no signature: anyone could be anyone", "write "+alternatives(good))
		default:
			c.problem(at, name, "is not known here", "write "+alternatives(good))
		}
	}
}

// secret reports a secret, as far as it stands in the policy, that its verifier will refuse. The problem never repeats it.
func (c *converter) secret(path, text string, algorithms Words) {
	_, fromEnvironment := environment(text)
	if text == "" || fromEnvironment {
		return
	}
	if strings.HasPrefix(text, "{env.") {
		c.problem(path, "", "begins as the name of an environment variable and does not end as one", `write "{env.NAME}"`)
		return
	}
	if len(algorithms) == 0 {
		algorithms = secretAlgorithms[:1]
	}
	for _, name := range algorithms {
		bits, err := strconv.Atoi(strings.TrimPrefix(name, "HS")) // of its hash: a shorter secret is the weakest part
		if err == nil && slices.Contains(secretAlgorithms, name) && len(text) < bits/8 {
			c.problem(path, "", fmt.Sprintf("has %d bytes, and %s needs %d", len(text), name, bits/8),
				fmt.Sprintf("make one with openssl rand -base64 %d", bits/8))
			return
		}
	}
}

// keySetURL reports what no key set is fetched from.
func (c *converter) keySetURL(path, text string) {
	if _, fromEnvironment := environment(text); fromEnvironment {
		return // what it holds is looked at when the verifier is opened
	}
	u, err := url.Parse(text)
	switch {
	case err != nil: // what it says repeats the text, and there may be a password in it
		c.problem(path, "", "is not a URL", "write one that begins with https://")
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		c.problem(path, u.Redacted(), "is not the URL of a key set", "write one that begins with https://")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		c.problem(path, u.Redacted(), "is not encrypted: whoever is on the way could put in keys of his own",
			"write https:// (http:// goes with 127.0.0.1, ::1 and localhost only)")
	}
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

func (c *converter) sources(path string, list Sources) (sources []core.Source) {
	for i := range list {
		at, d := index(path, i), &list[i]
		switch {
		case d.Header != nil:
			sources = append(sources, core.Source{Kind: core.SourceHeader,
				Name: textproto.CanonicalMIMEHeaderKey(d.Header.Name), Unverified: d.Header.Unverified})
		case d.HostLabel != nil:
			sources = append(sources, core.Source{Kind: core.SourceHost, Label: c.atLeastOne(at+".host_label", d.HostLabel)})
		case d.Attr != "":
			c.claimedSource(at+".attr", d.Attr)
			sources = append(sources, core.Source{Kind: core.SourceAttr, Name: d.Attr})
		default:
			c.problem(at, "", "says nothing", sourceRemedy)
			sources = append(sources, core.Source{})
		}
	}
	return sources
}

func (c *converter) lists(path string, list Lists) (entries []core.Listed) {
	for i := range list {
		at, d := index(path, i), &list[i]
		entries = append(entries, core.Listed{IP: c.prefixes(at+".ip", d.IP), User: d.User, APIKey: d.APIKey, Tier: d.Tier,
			Tenant: d.Tenant, Reason: d.Reason, Until: c.date(at+".until", string(d.Until))})
	}
	return entries
}

// date reads an instant; 0 is none.
func (c *converter) date(path, text string) core.Micros {
	if text == "" {
		return 0
	}
	const example = "2026-12-01T00:00:00Z"
	instant, err := time.Parse(time.RFC3339, text)
	if err == nil && instant.UnixMicro() > 0 {
		return core.Micros(instant.UnixMicro())
	}
	why, remedy := "is not a date and time of RFC 3339", "write one such as "+example
	if _, err := time.Parse(time.DateOnly, text); err == nil {
		why, remedy = "has no time and no zone", "write "+text+"T00:00:00Z, or another zone in the place of Z"
	} else if _, err := time.Parse("2006-01-02T15:04:05", text); err == nil {
		why, remedy = "has no zone", "write "+text+"Z, or another zone in the place of Z"
	}
	c.problem(path, text, why, remedy)
	return 0
}

// timezone returns a zone by its name; nil is UTC.
func (c *converter) timezone(path, name string) *time.Location {
	if name == "" {
		return nil
	}
	const remedy = "write one such as Europe/Berlin or UTC"
	if name == "Local" {
		c.problem(path, name, "is whatever the machine is set to, and machines differ", remedy)
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		c.problem(path, name, "is not a time zone", remedy)
		return nil
	}
	return zone
}

// span reads a duration and holds it against its bounds; no text is 0.
func (c *converter) span(path, text string, least, most core.Micros) core.Micros {
	if text == "" {
		return 0
	}
	span, err := parseSpan(text)
	if err != nil {
		c.limit(path, text, err)
		return 0
	}
	if span < least || span > most {
		c.problem(path, text, fmt.Sprintf("is out of bounds: it must be between %s and %s", spanText(least), spanText(most)), "")
	}
	return span
}

func (c *converter) prefixes(path string, texts Words) (prefixes []netip.Prefix) {
	for i, text := range texts {
		if prefix, ok := c.prefix(index(path, i), text); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

func (c *converter) prefix(path, text string) (netip.Prefix, bool) {
	const remedy = "write 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32"
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			c.problem(path, text, "is not an IP address or CIDR range", remedy)
			return netip.Prefix{}, false
		}
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	if prefix.Addr().Is4In6() {
		c.problem(path, text, "is an IPv4 address written as IPv6", "write the IPv4 range")
		return netip.Prefix{}, false
	}
	if masked := prefix.Masked(); masked != prefix {
		c.problem(path, text, "has an address beyond its range", "write "+masked.String())
		return netip.Prefix{}, false
	}
	return prefix, true
}
