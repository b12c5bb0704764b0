// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// Identity is the client that sent a request. The zero Identity means that the client is unknown.
type Identity struct {
	// Kind states how the client was identified: "user" (by a token), "api_key", "ip",
	// "header.x-user", "cookie.session", "attr.name". Kind is "" if the client is unknown.
	Kind string
	ID   string // at most 255 bytes; a longer ID is hashed, and Kind is then marked (see [IdentityOf])

	// the subject of the token, the owner of the key, or the value of Policy.User; "" if unknown
	User   string
	APIKey string // the name of the key, never the key itself; "" without a key
	Tier   string
	Tenant string

	// Overrides are the client's own limits, which replace those of rules and tiers. Overrides are
	// nil if the client has none.
	Overrides *Overrides
}

// IdentityOf returns the identity with the given kind and ID. An ID over 255 bytes is replaced by
// its SHA-256 in hexadecimal, and "-sha256" is appended to the kind. So a client whose ID is the
// hash of another client's ID is still a different client. An empty ID yields the zero Identity.
func IdentityOf(kind, id string) Identity {
	if id == "" {
		return Identity{}
	}
	if len(id) > ValueBytesMax {
		sum := slim.SHA256([]byte(id))
		kind, id = kind+HashSuffix, string(slim.AppendHex(nil, sum[:]))
	}
	return Identity{Kind: kind, ID: id}
}

// Verifier validates credentials, which are tokens or API keys. internal/credential has the
// implementations. Verifiers are safe for concurrent use and do not wait for I/O. Verifiers have
// their own clock and bounded memory.
type Verifier interface {
	// Verify returns the identity that the credential proves, and CredentialValid. For any other
	// credential, Verify returns nil and the reason. CredentialAbsent means that this verifier does
	// not handle this kind of credential.
	//
	// The credential has 1 to 8,192 bytes and belongs to the caller, so the verifier copies what it
	// keeps. The identity is shared and must not be changed. The identity's Kind and ID are as
	// [IdentityOf] returns them: "user" and User for a token, "api_key" and APIKey for a key. A
	// cached result requires no allocation.
	Verify(credential string) (*Identity, CredentialState)
}

// CostlyVerifier is a Verifier whose work is so expensive that the time for each client must be
// bounded, or one that looks up API keys in the directory of the request. A plan calls VerifyFor
// of such a verifier instead of Verify.
type CostlyVerifier interface {
	Verifier
	// VerifyFor does what Verify does, on behalf of a client. If the verifier has no time left for
	// a credential, it returns CredentialInvalid and sets asker.Unchecked. If VerifyFor needs a key
	// that the directory has not read, it returns CredentialInvalid and adds the key's name to
	// asker.Unread. The asker belongs to the caller.
	VerifyFor(asker *Asker, credential string) (*Identity, CredentialState)
}

// Asker is the client on whose behalf a credential is verified.
type Asker struct {
	// Addr is the client's plain address, as the policy determines it. Addr is the zero Addr if
	// unknown.
	Addr netip.Addr
	// Left is the remaining time that verifiers may spend on this request and on the requests
	// decided together with it. A verifier subtracts the time that it uses. If Left is nil, the
	// verifier applies its own bound.
	Left *counter.Micros
	// Past means that the request reports usage of a stream that has ended. A token that may have
	// expired during the stream is then valid.
	Past bool
	// Unchecked reports that the credential was not checked because no time was left.
	Unchecked bool
	// Keys is a source of API keys in addition to the verifier's own. Keys is nil without a
	// directory.
	Keys KeyDirectory
	// Unread receives the names (with the kind KindKey) of the keys that Keys has not read yet.
	// Unread is nil without Keys.
	Unread *[]ClientName
}

// CredentialState is the result of verifying a credential.
type CredentialState uint8

// The states of a credential. After one of the first five states, the next way to identify the
// client is tried, unless the policy has on_invalid: deny. After one of the last three, the request
// is denied with 401.
const (
	CredentialAbsent    CredentialState = iota // the request has no credential
	CredentialMalformed                        // not a token or key, or too long
	// the signature, the issuer or another claim is not valid
	CredentialInvalid
	CredentialExpired // a token that has expired or is not valid yet
	CredentialUnknown // a key that does not exist
	CredentialValid
	CredentialRevoked  // a revoked key
	CredentialInactive // a key that is disabled or not in force yet
	CredentialLapsed   // an expired key
	credentialStates
)

// CredentialStateCount is the number of states, for tables indexed by CredentialState.
const CredentialStateCount = int(credentialStates)

var credentialStateNames = [...]string{"absent", "malformed", "invalid", "expired", "unknown", "valid", "revoked",
	"inactive", "lapsed"}

// String returns the state's name in metrics, logs and responses.
func (s CredentialState) String() string { return credentialStateNames[s] }

// ValueBytesMax is the greatest length of an identifier or another value in a key. ValueBytesMax
// keeps clients from filling the store's memory with long values. A longer value is replaced by its
// hash, under a separate kind.
const ValueBytesMax = 255

// HashSuffix marks the kind of a hashed value. A policy cannot name a header or attribute with this
// suffix, so a client cannot send another client's hash in a header and use its counters.
const HashSuffix = "-sha256"
