// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

// Directory knows clients by name, in addition to what policies and credentials say about them.
// internal/directory has the implementation. Implementations answer from memory without waiting,
// do not allocate, and are safe for concurrent use.
type Directory interface {
	// Find returns the record of the client kind:id that is in force at an instant, or nil if there
	// is none. ok is false if the directory does not know yet whether there is one. The caller then
	// asks for the client and tries again (see core.Plan.Unresolved).
	Find(kind, id string, now counter.Micros) (record *ClientRecord, ok bool)
	// FindAddr returns the record of the longest network that contains the address, or nil. A
	// directory knows all its networks.
	FindAddr(addr netip.Addr, now counter.Micros) *ClientRecord
}

// KeyDirectory knows API keys. The [Directory] of a plan may implement it. Implementations answer as
// those of Directory do.
type KeyDirectory interface {
	// FindKey returns the owner of the API key with a SHA-256, and the key's state at an instant, as
	// [Verifier] does. ok is false if the directory does not know yet whether there is such a key.
	FindKey(hash [32]byte, now counter.Micros) (who *Identity, state CredentialState, ok bool)
}

// KindKey is the kind under which a directory names API keys, by their SHA-256 in hexadecimal. No
// client has this kind.
const KindKey = "~key"

// ClientRecord is what a directory says about a client at one instant. It is immutable and shared.
type ClientRecord struct {
	// Tier and Tenant hold for clients whose credential, and whose policy, name none.
	Tier, Tenant string
	// Overrides are the client's own limits. Those of a key or a token replace them.
	Overrides *Overrides
	// Blocked denies every request of the client. It takes precedence over Exempt.
	Blocked bool
	// Exempt admits every request of the client without counting it.
	Exempt bool
}

// ParseKind returns a kind of client that counters have, in the form that it has in keys: "user",
// "api_key", "ip", or one of a header, a cookie or an attribute, such as "header.x-user". Each may end
// with [HashSuffix]. It reports false for any other text.
func ParseKind(text string) (kind string, ok bool) {
	switch strings.TrimSuffix(text, HashSuffix) {
	case "user", "api_key", "ip":
		return text, true
	}
	word, name, _ := strings.Cut(text, ".")
	if word == "header" { // header names are case-insensitive
		text = strings.ToLower(text)
	}
	return text, name != "" && (word == "header" || word == "cookie" || word == "attr")
}

// ClientName names a client as keys do.
type ClientName struct{ Kind, ID string }

// String returns the name as KIND:ID.
func (n ClientName) String() string { return n.Kind + ":" + n.ID }
