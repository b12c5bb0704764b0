// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/binary"
	"strings"
	"unsafe"
)

// Bounds of credentials. What is beyond them is malformed and not absent: padding must not hide what else is there.
const (
	credentialBytesMax = 8 << 10  // one credential; tokens with many claims have some 4 KiB
	carrierBytesMax    = 64 << 10 // a query, or all cookies together, that one is looked for in
	carrierPairsMax    = 1000     // cookies, or query parameters, together: each is looked at
	carriersMax        = 8        // places of one way of identifying: each is tried at every request
)

// The places that are tried if a policy names none.
var (
	tokenCarriers = []CredentialSource{{Kind: FromBearer}}
	keyCarriers   = []CredentialSource{{Kind: FromHeader, Name: "X-API-Key"}, {Kind: FromBearer}}
)

// newCarriers returns the places made ready for requests.
func newCarriers(m Identify) []CredentialSource {
	from := m.From
	switch {
	case len(from) == 0 && m.Kind == IdentifyJWT:
		from = tokenCarriers
	case len(from) == 0:
		from = keyCarriers
	}
	out := make([]CredentialSource, len(from))
	for i, c := range from {
		out[i] = c
		if c.Kind == FromHeader {
			out[i].Name = canonicalHeader(c.Name)
		}
	}
	return out
}

// credential returns what the request carries in the place, and CredentialValid if it is worth asking about, otherwise
// CredentialAbsent or CredentialMalformed. An empty one counts as absent.
func (p *Plan) credential(c *CredentialSource) (text string, state CredentialState) {
	attrs := p.request.attrs
	switch c.Kind {
	case FromBearer:
		value, _ := attrs.Header("Authorization")
		text, state = bearer(value)
	case FromHeader:
		text, _ = attrs.Header(c.Name)
		text = trimSpace(text)
		state = presence(text)
	case FromQuery:
		text, state = p.queryValue(attrs.Query(), c.Name)
	case FromCookie:
		value, _ := attrs.Header("Cookie")
		text, state = cookieValue(value, c.Name)
	}
	if len(text) > credentialBytesMax {
		return "", CredentialMalformed
	}
	return text, state
}

func presence(text string) CredentialState {
	if text == "" {
		return CredentialAbsent
	}
	return CredentialValid
}

// bearer returns the token of an Authorization field. Another scheme is another's business, unless ours stands behind a
// comma. A token has no space, comma or control character. In either case it is several fields in one, and nobody knows
// which of them the upstream believes. Nor does anybody know of a field that begins with no scheme, or of one that has
// something else than spaces between scheme and token.
func bearer(field string) (token string, state CredentialState) {
	field = trimSpace(field)
	if field == "" {
		return "", CredentialAbsent
	}
	end := 0
	for end < min(len(field), schemeBytesMax) && isTokenByte(field[end]) {
		end++
	}
	if !equalASCII(field[:end], bearerScheme) {
		if end == 0 || end < len(field) && end < schemeBytesMax && strings.IndexByte(" \t,", field[end]) < 0 || bearerBehind(field[end:]) {
			return "", CredentialMalformed
		}
		return "", CredentialAbsent
	}
	for token = field[end:]; token != "" && token[0] == ' '; {
		token = token[1:]
	}
	if token == "" || len(token) == len(field)-end || len(token) > credentialBytesMax || !isToken(token) {
		return "", CredentialMalformed
	}
	return token, CredentialValid
}

const (
	bearerScheme   = "bearer"
	schemeBytesMax = 64 // a longer word is no scheme of ours either
)

// bearerBehind reports whether a field of ours stands behind a comma. "bearer=" there is a parameter of another scheme.
// Of a field that is too long to be looked through it is what there may be.
func bearerBehind(rest string) bool {
	if len(rest) > credentialBytesMax {
		return strings.IndexByte(rest, ',') >= 0
	}
	for more := true; ; {
		if _, rest, more = strings.Cut(rest, ","); !more {
			return false
		}
		second := trimSpace(rest)
		if len(second) < len(bearerScheme) || !equalASCII(second[:len(bearerScheme)], bearerScheme) {
			continue
		}
		if second = second[len(bearerScheme):]; second == "" || strings.IndexByte(" \t,", second[0]) >= 0 {
			return true
		}
	}
}

// isTokenByte reports whether names of schemes may have the character (RFC 9110, 5.6.2).
func isTokenByte(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// isToken reports whether the text is of visible ASCII characters without a comma. It looks at eight bytes at once: at a
// token of 700 that is a fifth of the time.
func isToken(text string) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	for ; len(b) >= 8; b = b[8:] {
		x := binary.LittleEndian.Uint64(b)
		comma, del := x^(','*ones), x^(0x7f*ones)
		// Of each byte the top bit: above ASCII, below "!", or zero where it is the character.
		odd := x | (x-'!'*ones)&^x | (comma-ones)&^comma | (del-ones)&^del
		if odd&tops != 0 {
			return false
		}
	}
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || c == ',' {
			return false
		}
	}
	return true
}

// cookieValue returns the value of the cookie, without the quotes that may be around it. Two values of one name that
// differ are malformed: servers differ in which of them they take, so that a client could be one to the limiter and
// another to the upstream. Cookies are told apart by ";" only: a comma is part of a value.
func cookieValue(header, name string) (value string, state CredentialState) {
	if crowdedCarrier(header, ";") {
		return "", CredentialMalformed
	}
	for header != "" {
		var pair string
		pair, header, _ = strings.Cut(header, ";")
		key, text, ok := strings.Cut(pair, "=")
		if !ok || trimSpace(key) != name {
			continue
		}
		if text = trimSpace(text); len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' {
			text = text[1 : len(text)-1]
		}
		if text != "" && value != "" && text != value {
			return "", CredentialMalformed
		}
		if text != "" {
			value = text
		}
	}
	return value, presence(value)
}

// crowdedCarrier reports whether there is more in a carrier than is looked through.
//
//go:noinline
func crowdedCarrier(text, separator string) bool {
	return len(text) > carrierBytesMax || len(text) > carrierPairsMax && strings.Count(text, separator) >= carrierPairsMax
}

// trimSpace returns the text without spaces and tabs around it.
//
//go:noinline
func trimSpace(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// queryValue returns the value of the query parameter, decoded as forms are. The name may be written in any way that
// servers read as this one. As of cookies, two values that are written differently are malformed.
func (p *Plan) queryValue(query, name string) (value string, state CredentialState) {
	if crowdedCarrier(query, "&") {
		return "", CredentialMalformed
	}
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, text, _ := strings.Cut(pair, "=")
		if text == "" || !spells(key, name) {
			continue
		}
		if value != "" && text != value {
			return "", CredentialMalformed
		}
		value = text
	}
	if strings.IndexByte(value, '%') < 0 && strings.IndexByte(value, '+') < 0 {
		return value, presence(value)
	}
	mark := len(p.text)
	for rest := value; rest != ""; {
		c, size := formByte(rest)
		if size == 0 {
			return "", CredentialMalformed
		}
		p.text, rest = append(p.text, c), rest[size:]
	}
	return p.textSince(mark), CredentialValid
}

// spells reports whether the text is the name, written as forms may write it.
func spells(text, name string) bool {
	for text != "" && name != "" {
		c, size := formByte(text)
		if size == 0 || c != name[0] {
			return false
		}
		text, name = text[size:], name[1:]
	}
	return text == "" && name == ""
}

// formByte returns the byte that the text, which is not empty, begins with, and how long it is written; 0 for an escape
// that is none.
func formByte(text string) (c byte, size int) {
	switch text[0] {
	case '+':
		return ' ', 1
	case '%':
		c, ok := unescape(text, 0)
		if !ok {
			return 0, 0
		}
		return c, 3
	}
	return text[0], 1
}

// verify asks whose the credentials are that the request carries for the way of identifying. It returns the identity of
// the first that is valid, or the state of the first that the request is refused for; else CredentialAbsent, and the next
// way is tried. A credential that does not verify hides none behind it: leaving one out wins nothing, nor does adding one.
func (p *Plan) verify(rs *Ruleset, method int) (*Identity, CredentialState) {
	f := &rs.finders[method]
	for i := range f.carriers {
		mark := len(p.text)
		text, state := p.credential(&f.carriers[i])
		var who *Identity
		p.asker.Unchecked = false
		if state == CredentialValid {
			who, state = p.ask(f, text)
		}
		clear(p.text[mark:]) // a decoded credential is not kept
		p.text = p.text[:mark]
		if state == CredentialAbsent {
			continue
		}
		p.credentials = append(p.credentials, CredentialUse{Ruleset: rs, Method: method, State: state, Identity: who,
			Unchecked: p.asker.Unchecked})
		if f.deny || state >= CredentialValid {
			return who, state
		}
	}
	return nil, CredentialAbsent
}

// ask asks the verifier, and takes an answer that makes no sense for a credential that is not valid.
func (p *Plan) ask(f *finder, credential string) (who *Identity, state CredentialState) {
	if f.costly == nil {
		who, state = f.verifier.Verify(credential)
	} else {
		p.asker.Addr = p.request.peer
		who, state = f.costly.VerifyFor(&p.asker, credential)
	}
	switch {
	case state >= credentialStateCount, state == CredentialValid && (who == nil || who.Kind == "" || who.ID == ""):
		return nil, CredentialInvalid
	case state != CredentialValid:
		return nil, state
	}
	return who, state
}
