// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"encoding/binary"
	"strings"
	"unsafe"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Bounds of credentials. A credential beyond these bounds is malformed, not absent, so that padding
// cannot hide a second credential.
const (
	CredentialBytesMax = 8 << 10  // bytes of one credential; a token with many claims has about 4 KiB
	PairsBytesMax      = 16 << 10 // bytes of a request's cookies or query; common servers accept 8 to 16 KiB
	pairsMax           = 1000     // cookies or query parameters of a request, each of which is examined
	CarriersMax        = 8        // places for one way to identify a client; a request can try them all
)

// The places that are tried if a policy names none.
var (
	TokenCarriers = []policy.CredentialSource{{Kind: policy.FromBearer}}
	keyCarriers   = []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-API-Key"}, {Kind: policy.FromBearer}}
)

// NewCarriers returns the compiled places.
func NewCarriers(m policy.Identify) []policy.CredentialSource {
	from := m.From
	switch {
	case len(from) == 0 && m.Kind == policy.IdentifyJWT:
		from = TokenCarriers
	case len(from) == 0:
		from = keyCarriers
	}
	out := make([]policy.CredentialSource, len(from))
	for i, c := range from {
		out[i] = c
		if c.Kind == policy.FromHeader {
			out[i].Name = match.CanonicalHeader(c.Name)
		}
	}
	return out
}

// Credential returns the credential in the given place of the request. The state is
// CredentialValid if the credential is well formed, otherwise CredentialAbsent or
// CredentialMalformed. An empty credential counts as absent.
func (cl *Client) Credential(c *policy.CredentialSource) (text string, state policy.CredentialState) {
	attrs := cl.Request.Attrs
	switch c.Kind {
	case policy.FromBearer:
		value, _ := attrs.Header("Authorization")
		text, state = Bearer(value)
	case policy.FromHeader:
		text, _ = attrs.Header(c.Name)
		text = trimSpace(text)
		state = presenceOf(text)
	case policy.FromQuery:
		text, state = cl.QueryValue(attrs.Query(), c.Name)
	case policy.FromCookie:
		value, _ := attrs.Header("Cookie")
		text, state = CookieValue(value, c.Name)
	}
	if len(text) > CredentialBytesMax {
		return "", policy.CredentialMalformed
	}
	return text, state
}

func presenceOf(text string) policy.CredentialState {
	if text == "" {
		return policy.CredentialAbsent
	}
	return policy.CredentialValid
}

// Bearer returns the token of an Authorization field. The token is absent if the field has another
// scheme. The token is malformed if the field could be several fields in one, because servers
// differ in which of them they use. A field could be several fields if a bearer field follows
// another scheme and a comma, or if the token contains a space, a comma or a control character. The
// token is also malformed if the field does not begin with a scheme, or if anything but spaces
// separates scheme and token. A token in a field that may lack its first lines, because the lines
// together are too long, is malformed as well: see [policy.JoinLines].
func Bearer(field string) (token string, state policy.CredentialState) {
	if len(field) > policy.CarrierBytesMax {
		return "", policy.CredentialMalformed
	}
	field = trimSpace(field)
	if field == "" {
		return "", policy.CredentialAbsent
	}
	end := 0
	for end < min(len(field), schemeBytesMax) && IsTokenByte(field[end]) {
		end++
	}
	if !slim.EqualASCII(field[:end], bearerScheme) {
		if end == 0 || end < len(field) && end < schemeBytesMax && strings.IndexByte(" \t,", field[end]) < 0 || hasBearerAfterComma(field[end:]) {
			return "", policy.CredentialMalformed
		}
		return "", policy.CredentialAbsent
	}
	for token = field[end:]; token != "" && token[0] == ' '; {
		token = token[1:]
	}
	if token == "" || len(token) == len(field)-end || len(token) > CredentialBytesMax || !IsToken(token) {
		return "", policy.CredentialMalformed
	}
	return token, policy.CredentialValid
}

const (
	bearerScheme   = "bearer"
	schemeBytesMax = 64 // no scheme known to this package is longer
)

// hasBearerAfterComma reports whether a bearer field follows a comma. hasBearerAfterComma ignores
// "bearer=", which is a parameter of another scheme. If a field is too long to search, the function
// returns true.
func hasBearerAfterComma(rest string) bool {
	if len(rest) > CredentialBytesMax {
		return strings.IndexByte(rest, ',') >= 0
	}
	for more := true; ; {
		if _, rest, more = strings.Cut(rest, ","); !more {
			return false
		}
		second := trimSpace(rest)
		if len(second) < len(bearerScheme) || !slim.EqualASCII(second[:len(bearerScheme)], bearerScheme) {
			continue
		}
		if second = second[len(bearerScheme):]; second == "" || strings.IndexByte(" \t,", second[0]) >= 0 {
			return true
		}
	}
}

// IsTokenByte reports whether the name of a scheme can contain the byte (RFC 9110, 5.6.2).
func IsTokenByte(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || slim.IsDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// IsToken reports whether the text consists of visible ASCII characters without a comma. IsToken
// examines eight bytes at once, which takes a fifth of the time for a token of 700 bytes.
func IsToken(text string) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	for ; len(b) >= 8; b = b[8:] {
		x := binary.LittleEndian.Uint64(b)
		comma, del := x^(','*ones), x^(0x7f*ones)
		// The top bit of each byte is set if the byte is above ASCII, below "!", a comma or DEL.
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

// CookieValue returns the value of the cookie, without enclosing quotes. If the name occurs with
// two different values, the cookie is malformed: servers differ in which value they use, so the
// limiter and the upstream could identify different clients. Only ";" separates cookies. If the
// name follows a comma or white space within a value, the cookie is malformed too.
func CookieValue(header, name string) (value string, state policy.CredentialState) {
	if exceedsPairs(header, ";") {
		return "", policy.CredentialMalformed
	}
	for header != "" {
		var pair string
		pair, header, _ = strings.Cut(header, ";")
		key, text, ok := strings.Cut(pair, "=")
		if key = trimSpace(key); !ok || key != name {
			if ok && text != "" && resemblesName(key, name, false) || hidesCookie(pair, name) {
				return "", policy.CredentialMalformed
			}
			continue
		}
		if hidesCookie(text, name) {
			return "", policy.CredentialMalformed
		}
		if text = trimSpace(text); len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"' {
			text = text[1 : len(text)-1]
		}
		if text != "" && value != "" && text != value {
			return "", policy.CredentialMalformed
		}
		if text != "" {
			value = text
		}
	}
	return value, presenceOf(value)
}

// exceedsPairs reports whether a query or cookie field has more bytes or parts than Penstock
// examines. The bounds are low because each way to identify a client examines all of them.
//
//go:noinline
func exceedsPairs(text, separator string) bool {
	return len(text) > PairsBytesMax || len(text) > pairsMax && strings.Count(text, separator) >= pairsMax
}

// QueryValue returns the value of the query parameter, decoded as form data. Any spelling that
// servers decode to the name counts as the name. As with cookies, a parameter is malformed if it
// has two values that are spelled differently.
func (cl *Client) QueryValue(query, name string) (value string, state policy.CredentialState) {
	if exceedsPairs(query, "&") {
		return "", policy.CredentialMalformed
	}
	semicolons := strings.IndexByte(query, ';') >= 0
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, text, _ := strings.Cut(pair, "=")
		switch {
		case semicolons && hasSemicolonParameter(pair, name):
			return "", policy.CredentialMalformed
		case text == "":
			continue
		case !isEncodedName(key, name):
			if resemblesName(key, name, true) {
				return "", policy.CredentialMalformed
			}
			continue
		}
		if value != "" && text != value {
			return "", policy.CredentialMalformed
		}
		value = text
	}
	if strings.IndexByte(value, '%') < 0 && strings.IndexByte(value, '+') < 0 {
		return value, presenceOf(value)
	}
	mark := len(cl.text)
	for rest := value; rest != ""; {
		c, size := formByte(rest)
		if size == 0 {
			return "", policy.CredentialMalformed
		}
		cl.text, rest = append(cl.text, c), rest[size:]
	}
	return cl.textSince(mark), policy.CredentialValid
}

// isEncodedName reports whether the text, decoded as form data, is the name.
func isEncodedName(text, name string) bool {
	for text != "" && name != "" {
		c, size := formByte(text)
		if size == 0 || c != name[0] {
			return false
		}
		text, name = text[size:], name[1:]
	}
	return text == "" && name == ""
}

// formByte decodes the first byte of the text, which is not empty. formByte also returns the length
// of the byte's encoding. The byte is 0 for an invalid escape.
func formByte(text string) (c byte, size int) {
	switch text[0] {
	case '+':
		return ' ', 1
	case '%':
		c, ok := slim.Unescape(text, 0)
		if !ok {
			return 0, 0
		}
		return c, 3
	}
	return text[0], 1
}

// Client.verify validates the request's credentials for one way to identify the client. It returns
// the identity of the first valid credential, or the state of the first credential for which the
// request is denied. Otherwise the method returns CredentialAbsent, and the caller tries the next
// way. An invalid credential does not end the search, so a client gains nothing by omitting or
// adding one.
func (cl *Client) verify(rules *Rules, method int) (*policy.Identity, policy.CredentialState) {
	f := &rules.Finders[method]
	for i := range f.carriers {
		mark := len(cl.text)
		text, state := cl.Credential(&f.carriers[i])
		var who *policy.Identity
		cl.Asker.Unchecked = false
		if state == policy.CredentialValid {
			who, state = cl.Ask(f, text)
		}
		clear(cl.text[mark:]) // the buffer must not keep a decoded credential
		cl.text = cl.text[:mark]
		if state == policy.CredentialAbsent {
			continue
		}
		cl.Uses = append(cl.Uses, Use{Method: method, State: state, Identity: who,
			Unchecked: cl.Asker.Unchecked})
		if f.Deny || state >= policy.CredentialValid {
			return who, state
		}
	}
	return nil, policy.CredentialAbsent
}

// Ask calls the verifier. Ask treats an inconsistent result as an invalid credential.
func (cl *Client) Ask(f *Finder, credential string) (who *policy.Identity, state policy.CredentialState) {
	if f.costly == nil {
		who, state = f.Verifier.Verify(credential)
	} else {
		cl.Asker.Addr = cl.Request.Peer
		who, state = f.costly.VerifyFor(&cl.Asker, credential)
	}
	switch {
	case int(state) >= policy.CredentialStateCount, state == policy.CredentialValid && (who == nil || who.Kind == "" || who.ID == ""):
		return nil, policy.CredentialInvalid
	case state != policy.CredentialValid:
		return nil, state
	}
	return who, state
}

// trimSpace returns the text without leading and trailing spaces and tabs. [strings.Trim] builds a
// set of the bytes to trim on each call, which takes longer than trimming most fields.
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
