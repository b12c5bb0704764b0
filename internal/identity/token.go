// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/base64"
	"strings"

	"github.com/penstock/penstock/core"
)

// TokenBytesMax is the size of the longest token that is looked at. Servers refuse headers that are not much longer, and
// real tokens have 500 to 3,000 bytes.
const TokenBytesMax = 8 << 10

// token is a token taken apart. Its claims are not looked at before the signature holds.
type token struct {
	algorithm *algorithm
	kid       string
	signed    string // header and claims, as they were signed
	payload   string
	signature []byte
}

// parts are those of a token in the compact form, as they are written.
type parts struct{ header, payload, signature string }

// cutToken finds the parts of a token. It costs next to nothing: an API key that is shown in the place of a token is told
// from one so.
func cutToken(text string) (p parts, ok bool) {
	var rest string
	if p.header, rest, ok = strings.Cut(text, "."); !ok {
		return p, false
	}
	p.payload, p.signature, ok = strings.Cut(rest, ".")
	return p, ok && strings.IndexByte(p.signature, '.') < 0 // five parts are an encrypted token
}

// parseToken takes a token apart. The parser of golang-jwt is not used: it reads the claims of anybody before it looks at
// the signature, takes the last of two members with one name, and skips line breaks.
func (j *JWT) parseToken(text string, p parts) (t token, state core.CredentialState) {
	t.payload, t.signed = p.payload, text[:len(text)-len(p.signature)-1]
	if !isBase64URL(t.payload) {
		return t, core.CredentialMalformed
	}
	var ok bool
	if t.signature, ok = decodePart(p.signature); !ok {
		return t, core.CredentialMalformed
	}
	data, ok := decodePart(p.header)
	if !ok {
		return t, core.CredentialMalformed
	}
	header, err := decodeObject(data, headerValuesMax)
	if err != nil {
		return t, core.CredentialMalformed
	}
	return t, j.readHeader(&t, header)
}

// readHeader takes what counts from a token's header. What names a key or where to find one (jwk, jku, x5c, x5u) is the
// sender's word for whom to trust: it is not even looked at.
func (j *JWT) readHeader(t *token, header map[string]any) core.CredentialState {
	name, ok := header["alg"].(string)
	if !ok {
		return core.CredentialMalformed
	}
	if kid, present := header["kid"]; present {
		if t.kid, ok = kid.(string); !ok {
			return core.CredentialMalformed
		}
	}
	if _, critical := header["crit"]; critical { // no extension is understood
		return core.CredentialInvalid
	}
	if encoded, present := header["b64"]; present && encoded != true {
		return core.CredentialInvalid
	}
	if t.algorithm = j.algorithms[name]; t.algorithm == nil {
		return core.CredentialInvalid
	}
	return core.CredentialValid
}

// strict refuses bits left over at the end, so that a token is written in one way only.
var strict = base64.RawURLEncoding.Strict()

// decodePart decodes base64url without padding. The decoder skips line breaks, which belong to no token.
func decodePart(part string) ([]byte, bool) {
	if part == "" || !isBase64URL(part) {
		return nil, false
	}
	data, err := strict.DecodeString(part)
	return data, err == nil
}

func isBase64URL(part string) bool {
	for i := range len(part) {
		c := part[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
