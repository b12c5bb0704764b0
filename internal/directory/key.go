// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// KeysOfNameMax is how many keys one name may have: the present one, the one that it replaces, and
// those that have ended.
const KeysOfNameMax = 8

// KeyInactive is the state of a key that is switched off.
const KeyInactive = "inactive"

// KeyRecord holds the settings of one API key. A KeyRecord never contains the key itself.
type KeyRecord struct {
	Version int    `json:"v,omitempty"` // the version of the format; 0 and 1 are the same
	Name    string `json:"name"`        // the name of the key; several keys may have the same name, for example during a rotation
	// Client is the client that the key identifies and that requests are counted for, as KIND:ID:
	// "user:u_42" or "api_key:acme".
	Client string `json:"client"`
	User   string `json:"user,omitempty"` // the owner, if Client is not a user
	Tenant string `json:"tenant,omitempty"`
	Tier   string `json:"tier,omitempty"`
	// Limits are the limits of the key, by the name of a rule, or by "*" for every rule that counts
	// the client.
	Limits    map[string][]string `json:"limits,omitempty"`
	State     string              `json:"state,omitempty"` // "" or "inactive"
	NotBefore time.Time           `json:"not_before,omitzero"`
	ExpiresAt time.Time           `json:"expires_at,omitzero"`
	Revoked   *Revocation         `json:"revoked,omitempty"`
}

// Revocation records that a key was revoked permanently.
type Revocation struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

// ParseKeyRecord parses the text of a key's record. A text of a later version, or with an unknown
// field, is an error, because a part of it would be ignored.
func ParseKeyRecord(text []byte) (*KeyRecord, error) {
	r, _, err := readKey(text)
	return r, err
}

// Text returns the record as it is stored.
func (r *KeyRecord) Text() []byte {
	text, err := json.Marshal(r)
	if err != nil { // this happens only for an instant after the year 9999, which Check rejects
		return nil
	}
	return text
}

// Check returns an error if the record is not valid.
func (r *KeyRecord) Check() error {
	_, err := r.compile()
	return err
}

// checkTexts checks the texts of the record.
func (r *KeyRecord) checkTexts() error {
	if r.Version > recordVersion || r.Version < 0 {
		return fmt.Errorf("the record is of version %d, and this program reads version %d", r.Version, recordVersion)
	}
	texts := []struct {
		name, value string
		most        int
	}{{"name", r.Name, policy.ValueBytesMax}, {"client", r.Client, policy.ValueBytesMax + len("api_key:")}, {"user", r.User, policy.ValueBytesMax},
		{"tenant", r.Tenant, policy.ValueBytesMax}, {"tier", r.Tier, policy.ValueBytesMax}}
	if r.Revoked != nil {
		texts = append(texts, struct {
			name, value string
			most        int
		}{"reason", r.Revoked.Reason, TextBytesMax})
	}
	for _, text := range texts {
		if err := checkText(text.name, text.value, text.most); err != nil {
			return err
		}
		if strings.TrimSpace(text.value) != text.value {
			return fmt.Errorf("%s %.40q begins or ends with a space", text.name, text.value)
		}
	}
	switch {
	case r.Name == "":
		return errors.New("the record has no name")
	case r.State != "" && r.State != KeyInactive:
		return fmt.Errorf("state %.40q is unknown; it is empty or %q", r.State, KeyInactive)
	case !r.NotBefore.IsZero() && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(r.NotBefore):
		return fmt.Errorf("the key would never be valid: it begins at %s and expires at %s", r.NotBefore.Format(time.RFC3339),
			r.ExpiresAt.Format(time.RFC3339))
	}
	for _, when := range []time.Time{r.NotBefore, r.ExpiresAt} {
		if !when.IsZero() && (when.Year() < 1970 || when.Year() > 9999) {
			return fmt.Errorf("the instant %d-%02d is not between the years 1970 and 9999", when.Year(), when.Month())
		}
	}
	return nil
}

// KeyRecord.client returns the client of the key.
func (r *KeyRecord) client() (policy.ClientName, error) {
	name, err := ParseName(r.Client)
	switch {
	case err != nil:
		return name, err
	case name.Kind != "user" && name.Kind != "api_key":
		return name, fmt.Errorf("client %q cannot have a key; write user:ID or api_key:NAME", r.Client)
	case name.Kind == "user" && r.User != "" && r.User != name.ID:
		return name, fmt.Errorf("client %q is not the user %q; leave the user out", r.Client, r.User)
	}
	return name, nil
}

// Identity returns the owner of the key.
func (r *KeyRecord) Identity() (policy.Identity, error) {
	name, err := r.client()
	if err != nil {
		return policy.Identity{}, err
	}
	who := policy.Identity{Kind: name.Kind, ID: name.ID, User: r.User, APIKey: r.Name, Tier: r.Tier, Tenant: r.Tenant}
	if name.Kind == "user" {
		who.User = name.ID
	}
	sets := make(map[string]policy.LimitSet, len(r.Limits))
	for _, rule := range slices.Sorted(maps.Keys(r.Limits)) {
		if sets[rule], err = policy.ParseLimitSet(r.Limits[rule]); err != nil {
			return who, fmt.Errorf("limits for rule %q: %q: %w", rule, r.Limits[rule], err)
		}
	}
	who.Overrides, err = policy.NewOverrides(sets)
	return who, err
}

// StateAt returns the state of the key at an instant.
func (r *KeyRecord) StateAt(now time.Time) policy.CredentialState {
	k := key{revoked: r.Revoked != nil, inactive: r.State == KeyInactive, notBefore: micros(r.NotBefore), expires: micros(r.ExpiresAt)}
	return k.state(counter.Micros(now.UnixMicro()))
}

// micros returns an instant, or 0 for the zero time.
func micros(when time.Time) counter.Micros {
	if when.IsZero() {
		return 0
	}
	return counter.Micros(when.UnixMicro())
}

// key holds a key's record in the form that requests use. Only the atomic field changes.
type key struct {
	identity           policy.Identity
	notBefore, expires counter.Micros // in microseconds; 0 means that there is no bound
	revoked, inactive  bool
	noted              atomic.Int64 // when a use was last noted, in microseconds since 1970
}

func (r *KeyRecord) compile() (*key, error) {
	if err := r.checkTexts(); err != nil {
		return nil, err
	}
	who, err := r.Identity()
	if err != nil {
		return nil, err
	}
	return &key{identity: who, notBefore: micros(r.NotBefore), expires: micros(r.ExpiresAt), revoked: r.Revoked != nil,
		inactive: r.State == KeyInactive}, nil
}

// readKey parses the text of a record.
func readKey(text []byte) (*KeyRecord, *key, error) {
	if len(text) > RecordBytesMax {
		return nil, nil, fmt.Errorf("the record has %d bytes, and may have %d", len(text), RecordBytesMax)
	}
	r, err := decode[KeyRecord]("record", text)
	if err != nil {
		return nil, nil, err
	}
	k, err := r.compile()
	if err != nil {
		return nil, nil, err
	}
	return r, k, nil
}

// parseKey parses the text of a record for requests.
func parseKey(text []byte) (*key, error) {
	_, k, err := readKey(text)
	return k, err
}

// key.at returns the key's state at an instant, and the key's owner if that state is valid. A nil
// key is unknown.
func (k *key) at(now counter.Micros) (*policy.Identity, policy.CredentialState) {
	if k == nil {
		return nil, policy.CredentialUnknown
	}
	if state := k.state(now); state != policy.CredentialValid {
		return nil, state
	}
	return &k.identity, policy.CredentialValid
}

// key.isUnnoted reports whether no use of the key was recorded in the last KeyUsedEvery before now.
func (k *key) isUnnoted(now counter.Micros) bool {
	since := int64(now) - k.noted.Load()
	return since < 0 || since >= KeyUsedEvery.Microseconds()
}

// key.state returns the state of the key at an instant. The states have the same precedence as in a
// keys file.
func (k *key) state(now counter.Micros) policy.CredentialState {
	switch {
	case k.revoked:
		return policy.CredentialRevoked
	case k.expires != 0 && now >= k.expires:
		return policy.CredentialLapsed
	case k.inactive, now < k.notBefore:
		return policy.CredentialInactive
	}
	return policy.CredentialValid
}

// isHash reports whether a text is a SHA-256 in lower-case hexadecimal.
func isHash(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == 32 && strings.ToLower(text) == text
}
