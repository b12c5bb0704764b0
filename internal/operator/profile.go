// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
)

// Profile holds the known properties of a client under one policy, and their origin.
type Profile struct {
	Policy string `json:"policy"`
	User   string `json:"user,omitempty"`
	Tier   string `json:"tier,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	// OwnLimits are the rules for which the client has limits of its own; "*" stands for all other
	// rules.
	OwnLimits []string `json:"own_limits,omitempty"`
	// From is the origin of the tier and the own limits, such as "keys.toml"; "" if it is unknown.
	From string `json:"from,omitempty"`
	// State is the state of the client's API key if it is not valid: "revoked", "inactive",
	// "lapsed".
	State string `json:"state,omitempty"`
	// Unknown are the properties that cannot be known without the client's request. The report then
	// shows the counters that a client without these properties would use.
	Unknown []Gap `json:"unknown,omitempty"`

	identity policy.Identity
	state    policy.CredentialState // of the API key; CredentialValid if the client has no key
}

// Gap is a property of a client that cannot be known.
type Gap struct {
	What string `json:"what"` // "tier" or "limits"
	Why  string `json:"why"`
}

// Identity returns the client as the policy would identify it.
func (f *Profile) Identity() policy.Identity { return f.identity }

// Credential returns the state of the client's API key, or CredentialValid for any other client.
func (f *Profile) Credential() policy.CredentialState { return f.state }

// isUnknown reports whether a property cannot be known.
func (f *Profile) isUnknown(what string) bool {
	for _, gap := range f.Unknown {
		if gap.What == what {
			return true
		}
	}
	return false
}

// In returns the profile of the client under a policy. Properties come from the operator's [Words],
// or else from a keys file or a remembered token. The error wraps [ErrNobody] if the policy cannot
// identify the client, and [ErrSelection] if the Words contradict a keys file.
func (c *Client) In(p *Policy) (*Profile, error) {
	f := &Profile{Policy: p.Ruleset.Name(), identity: c.who, state: policy.CredentialValid}
	var err error
	switch kind := strings.TrimSuffix(c.who.Kind, policy.HashSuffix); {
	case kind == "ip":
		c.addressIn(p, f)
	case kind == "api_key":
		err = c.keyIn(p, f)
	case kind == "user":
		err = c.userIn(p, f)
	case !p.identifies(kind) && !p.countsBy(kind):
		err = unknownClientError(c, p, "identifies clients by "+p.kinds())
	}
	if err != nil {
		return nil, err
	}
	c.sourcesIn(p, f)
	id := &f.identity
	f.User, f.Tier, f.Tenant, f.OwnLimits = id.User, id.Tier, id.Tenant, id.Overrides.Rules()
	return f, nil
}

// unknownClientError returns the error for a client that cannot exist under a policy.
func unknownClientError(c *Client, p *Policy, why string) error {
	return &selectionError{kind: ErrNobody, text: fmt.Sprintf("there is no client %s: the policy %q %s", c, p.Ruleset.Name(), why)}
}

// addressIn sets the identity of an address. The policy sets the prefix length and the attributes
// that the words omit.
func (c *Client) addressIn(p *Policy, f *Profile) {
	if !c.addr.IsValid() {
		return
	}
	var found core.Plan
	for range found.AllCounters(p.Ruleset, c) {
		break // the first page is enough to identify the client
	}
	who := found.Identity()
	f.identity = *c.withWords(&who)
}

// keyIn looks up the client's API key in the keys files, and sets its properties in f.
func (c *Client) keyIn(p *Policy, f *Profile) error {
	if !p.identifies("api_key") {
		if p.countsBy("api_key") {
			return nil
		}
		return unknownClientError(c, p, "identifies clients by "+p.kinds())
	}
	var files []string
	for _, keys := range p.keys() {
		found, ok := keys.Named(c.who.ID)
		if len(found) > 0 {
			return c.describe(p, f, &knownKey{found[0].Identity, keys.State(found[0]), filepath.Base(keys.File())})
		}
		if keys.InDirectory() && c.stored != nil {
			return c.describe(p, f, c.stored)
		}
		if !ok || keys.InDirectory() {
			files = nil
			break
		}
		files = append(files, filepath.Base(keys.File()))
	}
	if len(files) == 0 {
		f.unknown("tier", "it is that of the client's key, which \"penstock key show\" shows if it is in the directory; say the tier")
		f.unknown("limits", "those of the client's key, which \"penstock key show\" shows if it is in the directory, are not among these")
		return nil
	}
	return unknownClientError(c, p, "has no key of that name in "+strings.Join(files, ", "))
}

// knownKey holds the properties of an API key in a keys file or the directory.
type knownKey struct {
	Identity policy.Identity
	state    policy.CredentialState
	from     string // the name of the file, or "the directory"
}

// Client.describe sets the known properties of an API key. It returns an error if the words
// contradict them.
func (c *Client) describe(p *Policy, f *Profile, key *knownKey) error {
	file := key.from
	for _, field := range []struct {
		word, formatReport, entry string
		sources                   policyfile.Sources // used if the entry lacks the property
	}{
		{"tier", c.who.Tier, key.Identity.Tier, p.Document.Tier}, {"user", c.who.User, key.Identity.User, p.Document.User},
		{"tenant", c.who.Tenant, key.Identity.Tenant, p.Document.Tenant},
	} {
		if field.formatReport == "" || field.formatReport == field.entry || field.entry == "" && len(field.sources) > 0 {
			continue
		}
		entry := fmt.Sprintf("the %s %q", field.word, field.entry)
		if field.entry == "" {
			entry = "no " + field.word
		}
		return &selectionError{kind: ErrSelection, text: fmt.Sprintf("%s %q contradicts %s, in which %s has %s; leave it out",
			field.word, field.formatReport, file, c, entry)}
	}
	f.identity, f.From = *c.withWords(&key.Identity), file
	if f.state = key.state; f.state != policy.CredentialValid {
		f.State = f.state.String()
	}
	return nil
}

// userIn sets the properties of a user, as found in remembered tokens or in the user's API keys.
func (c *Client) userIn(p *Policy, f *Profile) error {
	if p.identifies("user") {
		c.tokensIn(p, f)
		return nil
	}
	if owned := c.ownedIn(p, f); len(owned) > 0 {
		c.ownerOf(f, owned)
		return nil
	}
	switch {
	case len(p.Document.User) > 0:
		return nil
	case len(p.keys()) > 0:
		return unknownClientError(c, p, "has no key of that user, and identifies clients by "+p.kinds())
	}
	return unknownClientError(c, p, "identifies clients by "+p.kinds())
}

// ownedIn returns the valid API keys of the user, or all if none is valid.
func (c *Client) ownedIn(p *Policy, f *Profile) []*credential.Key {
	var valid, others []*credential.Key
	for _, keys := range p.keys() {
		found, _ := keys.OfUser(c.who.ID)
		if len(found) > 0 && f.From == "" {
			f.From = filepath.Base(keys.File())
		}
		for _, key := range found {
			if keys.State(key) == policy.CredentialValid {
				valid = append(valid, key)
			} else {
				others = append(others, key)
			}
		}
	}
	if len(valid) > 0 {
		return valid
	}
	return others
}

// tokensIn sets the properties of a user that remembered tokens contain.
func (c *Client) tokensIn(p *Policy, f *Profile) {
	for i := range p.Document.Identify {
		if p.Document.Identify[i].JWT == nil {
			continue
		}
		if jwt, ok := p.Verifiers[i].(*credential.JWT); ok {
			if seen := jwt.Seen(c.who.Kind, c.who.ID); len(seen) > 0 {
				f.identity, f.From, f.Unknown = *c.withWords(seen[0]), "the last token seen by this process", nil
				return
			}
		}
		c.claimsIn(p, f, p.Document.Identify[i].JWT)
	}
	if p.Document.KeysInDirectory() && c.who.Tier == "" && p.usesTiers() {
		f.unknown("tier", "a key of the user in the directory may have one; say the tier")
	}
}

// withWords returns a copy of id in which the user, tier and tenant of the [Words], if given,
// replace those of id.
func (c *Client) withWords(id *policy.Identity) *policy.Identity {
	who := *id
	who.User, who.Tier, who.Tenant = cmp.Or(c.who.User, who.User), cmp.Or(c.who.Tier, who.Tier), cmp.Or(c.who.Tenant, who.Tenant)
	return &who
}

// claimsIn records as unknown the properties that only the client's token contains.
func (c *Client) claimsIn(p *Policy, f *Profile, jwt *policyfile.IdentifyJWT) {
	const where = "of the client's token, and this process remembers none of its tokens"
	if jwt.TierClaim != "" && c.who.Tier == "" && p.usesTiers() {
		f.unknown("tier", fmt.Sprintf("it is the claim %q %s; say the tier", jwt.TierClaim, where))
	}
	if jwt.LimitsClaim != "" {
		f.unknown("limits", fmt.Sprintf("they are the claim %q %s", jwt.LimitsClaim, where))
	}
}

// ownerOf takes the tier, the tenant and the limits of a user from the user's API keys. Properties
// that differ between the keys are unknown.
func (c *Client) ownerOf(f *Profile, owned []*credential.Key) {
	if len(owned) == 0 {
		return
	}
	first := c.withWords(&owned[0].Identity)
	for _, key := range owned[1:] {
		if key.Identity.Tier != owned[0].Identity.Tier && c.who.Tier == "" {
			f.unknown("tier", fmt.Sprintf("the keys %q and %q of the user have different tiers; say the tier", owned[0].Identity.ID,
				key.Identity.ID))
			first.Tier = ""
		}
		if key.Identity.Overrides != owned[0].Identity.Overrides {
			f.unknown("limits", fmt.Sprintf("the keys %q and %q of the user have limits of their own", owned[0].Identity.ID, key.Identity.ID))
			first.Overrides = nil
		}
	}
	f.identity.Tier, f.identity.Tenant, f.identity.Overrides = first.Tier, first.Tenant, first.Overrides
}

// sourcesIn records that the tier is unknown if the policy takes it from each request.
func (c *Client) sourcesIn(p *Policy, f *Profile) {
	if f.identity.Tier != "" || len(p.Document.Tier) == 0 || !p.usesTiers() {
		return
	}
	var from []string
	for i := range p.Document.Tier {
		switch source := &p.Document.Tier[i]; {
		case source.Header != nil:
			from = append(from, "the header "+source.Header.Name)
		case source.Attr != "":
			from = append(from, source.Attr)
		default:
			from = append(from, "the host")
		}
	}
	f.unknown("tier", "the policy takes it from "+strings.Join(from, " or ")+" of each request; say the tier")
}

// Profile.unknown records that a property cannot be known, unless this is recorded already.
func (f *Profile) unknown(what, why string) {
	if !f.isUnknown(what) {
		f.Unknown = append(f.Unknown, Gap{what, why})
	}
}
