// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// Named is a policy under which requests of named clients are explained. The policy is compiled
// once, before the client is known.
type Named struct {
	operator.Policy
	// standIns are the verifiers of the ruleset; nil for entries that need none. The verifiers in
	// Policy know the API keys.
	standIns []*standIn
}

// standIn is a verifier that is chosen after the policy was compiled.
type standIn struct{ policy.Verifier }

// Compile compiles a policy. The element verifiers[i] knows the API keys of d.Identify[i]; it may
// be nil. Until [Request.Name] chooses other verifiers, every credential is unknown.
func Compile(d *policyfile.Document, verifiers []policy.Verifier) (*Named, error) {
	n := &Named{Policy: operator.Policy{Document: d, Verifiers: verifiers}, standIns: make([]*standIn, len(d.Identify))}
	compiled := make([]policy.Verifier, len(d.Identify))
	for i := range d.Identify {
		if d.Identify[i].Verified() != "" {
			n.standIns[i] = &standIn{Unknowing{}}
			compiled[i] = n.standIns[i]
		}
	}
	var err error
	n.Ruleset, err = d.CompileWith(compiled)
	return n, err
}

// Name makes a request come from a named client. From then on, the policy accepts any credential as
// the client's. Name returns the profile of the client under the policy.
func (r *Request) Name(n *Named, client *operator.Client, words operator.Words) (*operator.Profile, error) {
	f, err := client.In(&n.Policy)
	if err != nil {
		return nil, err
	}
	for i, v := range n.standIns {
		if v == nil {
			continue
		}
		entry := &n.Document.Identify[i]
		if kind, _, _ := strings.Cut(client.String(), ":"); (entry.JWT != nil) == (strings.TrimSuffix(kind, policy.HashSuffix) == "user") &&
			(entry.APIKey != nil) == (kind == "api_key") {
			if err := r.addCredential(entry); err != nil {
				return nil, err
			}
			v.Verifier = asserting{f}
			return f, nil
		}
	}
	return f, r.claim(client, words)
}

// Unknowing is a verifier for entries whose credentials the program does not have.
type Unknowing struct{}

// Verify returns that the credential is unknown.
func (Unknowing) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialUnknown
}

// asserting is a verifier that accepts any credential as that of one client.
type asserting struct{ client *operator.Profile }

// Verify returns the identity of the client. If the client has an API key that is not valid, Verify
// returns the state of the key instead.
func (v asserting) Verify(string) (*policy.Identity, policy.CredentialState) {
	if state := v.client.Credential(); state != policy.CredentialValid {
		return nil, state
	}
	who := v.client.Identity()
	return &who, policy.CredentialValid
}

// assertedCredential represents the credential of a named client.
const assertedCredential = "of-the-named-client"

// addCredential adds a credential to the request where an entry of identify looks for it.
func (r *Request) addCredential(entry *policyfile.Identify) error {
	of := &r.Description
	var header, cookie, query string
	if entry.JWT != nil {
		header, cookie, query = entry.JWT.Header, entry.JWT.Cookie, entry.JWT.Query
	} else {
		header, cookie, query = entry.APIKey.Header, entry.APIKey.Cookie, entry.APIKey.Query
		if header == "" && cookie == "" && query == "" && !entry.APIKey.Bearer {
			header = "X-API-Key"
		}
	}
	value := assertedCredential
	switch {
	case header != "":
	case cookie != "":
		header, value = "Cookie", cookie+"="+value
	case query != "":
		of.Query = strings.TrimPrefix(of.Query+"&"+url.QueryEscape(query)+"="+value, "&")
		return nil
	default:
		header, value = "Authorization", "Bearer "+value
	}
	if of.Headers.Get(header) != "" {
		return fmt.Errorf("the named client and the header %s both identify the client; leave one out", header)
	}
	of.Headers.Set(header, value)
	return nil
}

// Request.claim adds to the request the properties that identify a client without a credential.
func (r *Request) claim(client *operator.Client, words operator.Words) error {
	of := &r.Description
	kind, id, _ := strings.Cut(client.String(), ":")
	word, name, _ := strings.Cut(kind, ".")
	if said := cmp.Or(words.User, words.Tier, words.Tenant); said != "" {
		return fmt.Errorf("user, tier and tenant are those of a token or a key, and %s has none; add the field that the policy takes %q from, "+
			"by its header or attribute", client, said)
	}
	switch word {
	case "ip":
		text, _, _ := strings.Cut(id, "/")
		addr, err := netip.ParseAddr(text)
		if err != nil || of.Peer.IsValid() {
			return fmt.Errorf("the client %s and the address of the request both give the address; leave one out", client)
		}
		of.Peer = addr
		if !of.Remote.IsValid() {
			of.Remote = addr
		}
	case "header":
		of.Headers.Set(name, id)
	case "cookie":
		of.Headers.Add("Cookie", name+"="+id)
	case "attr":
		of.Attrs[name] = id
	default:
		return fmt.Errorf("the policy identifies no client as %s by itself; name the client by its token or key", client)
	}
	return nil
}
