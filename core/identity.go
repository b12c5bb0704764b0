// SPDX-License-Identifier: Apache-2.0

package core

// Identity is who is asking. The zero Identity is nobody.
type Identity struct {
	// Kind is how the client was found: "user" (a token's), "api_key", "ip", "header.x-user", "cookie.session",
	// "attr.name"; "" if nobody was.
	Kind string
	ID   string // at most 255 bytes; a longer one is replaced by its hash, and Kind says so (see [IdentityOf])

	User   string // who the token, or the owner of the key, is; "" if that is not known
	APIKey string // the name of the key, never the key itself; "" if there was none
	Tier   string
	Tenant string

	// Overrides are limits of this client's own, in place of those of the rules and tiers; nil if there are none.
	Overrides *Overrides
}

// Verifier says whose a credential is: a token or an API key. Implementations are in internal/identity. They are safe for
// concurrent use, know the time, bound what they remember, and answer without waiting for anybody.
type Verifier interface {
	// Verify returns the identity behind the credential and CredentialValid, or nil and what is wrong with it. The
	// credential belongs to the caller. The identity is shared: nobody changes it. What is remembered costs no
	// allocation.
	Verify(credential string) (*Identity, CredentialState)
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
