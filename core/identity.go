// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/hex"
	"net/netip"
)

// Identity is who is asking. The zero Identity is nobody.
type Identity struct {
	// Kind is how the client was found: "user" (a token's), "api_key", "ip", "header.x-user", "cookie.session",
	// "attr.name"; "" if nobody was.
	Kind string
	ID   string // at most 255 bytes; a longer one is replaced by its hash, and Kind says so (see [IdentityOf])

	User   string // who the token, or the owner of the key, is, or who Policy.User says; "" if that is not known
	APIKey string // the name of the key, never the key itself; "" if there was none
	Tier   string
	Tenant string

	// Overrides are limits of this client's own, in place of those of the rules and tiers; nil if there are none.
	Overrides *Overrides
}

// IdentityOf returns the identity of that kind and ID. An ID over 255 bytes is replaced by its SHA-256 in hexadecimal, and
// the kind then ends in "-sha256", so that nobody is counted as another by having the other's hash for a name. An empty
// ID is nobody's: the result is the zero Identity.
func IdentityOf(kind, id string) Identity {
	if id == "" {
		return Identity{}
	}
	if len(id) > valueBytesMax {
		sum := sum256([]byte(id))
		kind, id = kind+hashSuffix, hex.EncodeToString(sum[:])
	}
	return Identity{Kind: kind, ID: id}
}

// Verifier says whose a credential is: a token or an API key. Implementations are in internal/identity. They are safe for
// concurrent use, know the time, bound what they remember, and answer without waiting for anybody.
type Verifier interface {
	// Verify returns the identity behind the credential and CredentialValid, or nil and what is wrong with it;
	// CredentialAbsent says that it is none of this verifier's. The credential, of 1 to 8,192 bytes, belongs to the caller:
	// what is kept of it must be copied. The identity is shared: nobody changes it. Its Kind and ID are those of
	// [IdentityOf]: of a token "user" and User, of a key "api_key" and APIKey. What is remembered costs no allocation.
	Verify(credential string) (*Identity, CredentialState)
}

// CostlyVerifier is a Verifier whose answers may cost enough to be worth an attack, so that it bounds what it spends on each
// client. A plan asks it by VerifyFor.
type CostlyVerifier interface {
	Verifier
	// VerifyFor is Verify on behalf of a client. A credential that the verifier has no time for is CredentialInvalid, and
	// asker.Unchecked says so. The asker belongs to the caller.
	VerifyFor(asker *Asker, credential string) (*Identity, CredentialState)
}

// Asker is on whose behalf a credential is verified.
type Asker struct {
	// Addr is the client's address, plain, as the policy finds it; the zero Addr if it is unknown.
	Addr netip.Addr
	// Left is how long verifiers may still take for this request and those that are decided with it. A verifier takes off
	// what it has used. Nil: as long as the verifier finds right.
	Left *Micros
	// Unchecked says that the credential was not looked at for want of time.
	Unchecked bool
}

// CredentialState says what a credential is worth.
type CredentialState uint8

// The states of a credential. After the first five the next way of identifying is tried, unless the policy says
// on_invalid: deny; after the last three the request is refused with 401.
const (
	CredentialAbsent    CredentialState = iota // the request carries none
	CredentialMalformed                        // not a token or key at all, or too long
	CredentialInvalid                          // the signature, the issuer or another claim does not hold
	CredentialExpired                          // a token that was good once, or is not good yet
	CredentialUnknown                          // a key that nobody has
	CredentialValid
	CredentialRevoked  // a key that was taken back
	CredentialInactive // a key that is switched off, or not in force yet
	CredentialLapsed   // a key whose time is over
	credentialStateCount
)

// CredentialStateCount is how many states there are, for tables indexed by CredentialState.
const CredentialStateCount = int(credentialStateCount)

var credentialStateNames = [...]string{"absent", "malformed", "invalid", "expired", "unknown", "valid", "revoked",
	"inactive", "lapsed"}

// String returns the state's name as it stands in metrics, logs and answers.
func (s CredentialState) String() string { return credentialStateNames[s] }
