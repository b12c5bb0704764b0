// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

// Directory stores records of clients by name, in addition to what policies and credentials define.
// internal/directory has the implementation. Implementations answer from memory without waiting, do
// not allocate, and are safe for concurrent use.
type Directory interface {
	// Find returns the record that is in force at an instant for the client kind:id, or nil if
	// there is none. The result ok is false if the directory has not looked up the client yet. The
	// caller then requests a lookup and tries again (see core.Plan.Unresolved).
	Find(kind, id string, now counter.Micros) (record *ClientRecord, ok bool)
	// FindAddr returns the record of the network with the longest prefix that contains the address,
	// or nil. A directory always has all its networks in memory.
	FindAddr(addr netip.Addr, now counter.Micros) *ClientRecord
}

// KeyDirectory knows API keys. The [Directory] of a plan may implement it. A KeyDirectory's methods
// answer without waiting, as Directory's methods do.
type KeyDirectory interface {
	// FindKey returns the owner of the API key with the given SHA-256, and the key's state at an
	// instant, as [Verifier] does. The result ok is false if the directory does not know yet
	// whether there is such a key.
	FindKey(hash [32]byte, now counter.Micros) (who *Identity, state CredentialState, ok bool)
}

// KindKey is the kind under which a directory names API keys, by their SHA-256 in hexadecimal. No
// client has this kind.
const KindKey = "~key"

// ClientRecord is a client's entry in a directory, as it is in force at one instant. A ClientRecord
// is immutable and shared.
type ClientRecord struct {
	// Tier and Tenant apply if neither the client's credential nor the policy names one.
	Tier, Tenant string
	// Overrides are the client's own limits. The limits of a key or a token take precedence over
	// them.
	Overrides *Overrides
	// Blocked denies every request of the client. Blocked takes precedence over Exempt.
	Blocked bool
	// Exempt admits every request of the client without counting it.
	Exempt bool
	// Network reports whether the record belongs to a network of several clients. Such a record
	// makes no client known: one client can have any number of addresses.
	Network bool
}

// ParseKind returns a kind of client in the form used in keys: "user", "api_key", "ip", or the name
// of a header, a cookie or an attribute, such as "header.x-user". Each kind can end with
// [HashSuffix]. For any other text it returns false.
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

// ClientName identifies a client by the kind and the ID used in keys.
type ClientName struct{ Kind, ID string }

// String returns the name as KIND:ID.
func (n ClientName) String() string { return n.Kind + ":" + n.ID }
