// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"encoding/base64"
	"strings"

	"github.com/penstock/penstock/core/policy"
)

// TokenBytesMax is the size of the longest token that is verified. Real tokens have 500 to 3,000
// bytes, and servers reject headers that are not much longer than TokenBytesMax.
const TokenBytesMax = 8 << 10

// token is a parsed token. The token's claims are read only after its signature is verified.
type token struct {
	algorithm *algorithm
	kid       string
	signed    string // header and claims, as signed
	payload   string
	signature []byte
}

// tokenParts holds the three parts of a token in the compact form, still encoded.
type tokenParts struct{ header, payload, signature string }

// cutToken splits a token into its parts. cutToken is cheap, and rejects an API key that is sent as
// a token.
func cutToken(text string) (p tokenParts, ok bool) {
	var rest string
	if p.header, rest, ok = strings.Cut(text, "."); !ok {
		return p, false
	}
	p.payload, p.signature, ok = strings.Cut(rest, ".")
	return p, ok && strings.IndexByte(p.signature, '.') < 0 // an encrypted token has five parts
}

// parseToken parses a token. The parser of golang-jwt is not used: it reads claims before it
// verifies the signature, takes the last of two members with one name, and skips line breaks.
func (j *JWT) parseToken(text string, p tokenParts) (t token, state policy.CredentialState) {
	t.payload, t.signed = p.payload, text[:len(text)-len(p.signature)-1]
	if !isBase64URL(t.payload) {
		return t, policy.CredentialMalformed
	}
	var ok bool
	if t.signature, ok = decodePart(p.signature); !ok {
		return t, policy.CredentialMalformed
	}
	data, ok := decodePart(p.header)
	if !ok {
		return t, policy.CredentialMalformed
	}
	header, err := decodeObject(data, headerValuesMax)
	if err != nil {
		return t, policy.CredentialMalformed
	}
	return t, j.readHeader(&t, header)
}

// readHeader reads the relevant members of a token's header. readHeader ignores members that
// contain a key or its location (jwk, jku, x5c, x5u), because they would let the sender choose the
// key.
func (j *JWT) readHeader(t *token, header map[string]any) policy.CredentialState {
	name, ok := header["alg"].(string)
	if !ok {
		return policy.CredentialMalformed
	}
	if kid, present := header["kid"]; present {
		if t.kid, ok = kid.(string); !ok {
			return policy.CredentialMalformed
		}
	}
	if _, critical := header["crit"]; critical { // no extension is supported
		return policy.CredentialInvalid
	}
	if encoded, present := header["b64"]; present && encoded != true {
		return policy.CredentialInvalid
	}
	if t.algorithm = j.algorithms[name]; t.algorithm == nil {
		return policy.CredentialInvalid
	}
	return policy.CredentialValid
}

// strict rejects nonzero trailing bits, so that a token has only one encoding.
var strict = base64.RawURLEncoding.Strict()

// decodePart decodes base64url without padding. The decoder skips line breaks, so isBase64URL
// rejects them.
func decodePart(part string) ([]byte, bool) {
	if part == "" || !isBase64URL(part) {
		return nil, false
	}
	data, err := strict.DecodeString(part)
	return data, err == nil
}

// isBase64URL reports whether a part has only characters of base64url.
func isBase64URL(part string) bool {
	for i := range len(part) {
		c := part[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
