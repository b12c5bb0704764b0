// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// The method assert makes the request come from the named client. The method returns verifiers that
// accept any credential as the client's. The caller closes the closer.
func (q *question) assert(cmd *cobra.Command, d *policyfile.Document, a *asked) ([]policy.Verifier, io.Closer, error) {
	if q.named.Client == "" {
		return nil, nil, errors.New("--user, --tier and --tenant are those of a --client; write --client user:u_42 too")
	}
	client, err := operator.Parse(q.named)
	if err != nil {
		return nil, nil, fmt.Errorf("--client: %w", err)
	}
	p, closer, err := openUnwatched(d, q.policy)
	if err != nil {
		return nil, nil, err
	}
	verifiers, err := q.assertIn(cmd, p, client, a)
	if err != nil {
		_ = closer.Close() // nothing was written to the store
		return nil, nil, err
	}
	return verifiers, closer, nil
}

// assertIn is like assert, for a policy that is already open.
func (q *question) assertIn(cmd *cobra.Command, p *operator.Policy, client *operator.Client, a *asked) ([]policy.Verifier, error) {
	f, err := client.In(p)
	if err != nil {
		return nil, err
	}
	warnOfUnknown(cmd.ErrOrStderr(), client.String(), f)
	verifiers := make([]policy.Verifier, len(p.Document.Identify))
	carried := false
	for i := range verifiers {
		entry := &p.Document.Identify[i]
		if entry.JWT == nil && entry.APIKey == nil {
			continue
		}
		verifiers[i] = noVerifier{}
		if kind, _, _ := strings.Cut(client.String(), ":"); !carried && (entry.JWT != nil) == (strings.TrimSuffix(kind, policy.HashSuffix) == "user") &&
			(entry.APIKey != nil) == (kind == "api_key") {
			if err := a.addCredential(entry); err != nil {
				return nil, err
			}
			verifiers[i], carried = asserting{f}, true
		}
	}
	if carried {
		return verifiers, nil
	}
	return verifiers, q.claim(client, a)
}

// The type asserting is a verifier that accepts any credential as that of one client.
type asserting struct{ client *operator.Profile }

// Verify returns the client, or the state of its API key if that is not valid.
func (v asserting) Verify(string) (*policy.Identity, policy.CredentialState) {
	if state := v.client.Credential(); state != policy.CredentialValid {
		return nil, state
	}
	who := v.client.Identity()
	return &who, policy.CredentialValid
}

// assertedCredential represents the credential of a named client.
const assertedCredential = "of-the-named-client"

// The method addCredential adds a credential to the request where an entry of identify looks for
// it.
func (a *asked) addCredential(entry *policyfile.Identify) error {
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
		a.query = strings.TrimPrefix(a.query+"&"+url.QueryEscape(query)+"="+value, "&")
		return nil
	default:
		header, value = "Authorization", "Bearer "+value
	}
	if a.headers.Get(header) != "" {
		return fmt.Errorf("--client and the header %s both identify the client; leave one out", header)
	}
	a.headers.Set(header, value)
	return nil
}

// The method claim adds to the request the properties that identify a client without a credential.
func (q *question) claim(client *operator.Client, a *asked) error {
	kind, id, _ := strings.Cut(client.String(), ":")
	word, name, _ := strings.Cut(kind, ".")
	if said := cmp.Or(q.named.User, q.named.Tier, q.named.Tenant); said != "" {
		return fmt.Errorf("--user, --tier and --tenant are those of a token or a key, and %s has none; add the field that the policy takes %q from, "+
			"by --header or --attr", client, said)
	}
	switch word {
	case "ip":
		text, _, _ := strings.Cut(id, "/")
		addr, err := netip.ParseAddr(text)
		if err != nil || a.peer.IsValid() {
			return fmt.Errorf("--client %s and --ip both give the address; leave one out", client)
		}
		a.peer = addr
		if !a.remote.IsValid() {
			a.remote = addr
		}
	case "header":
		a.headers.Set(name, id)
	case "cookie":
		a.headers.Add("Cookie", name+"="+id)
	case "attr":
		a.attrs[name] = id
	default:
		return fmt.Errorf("the policy identifies no client as %s by itself; name the client by its token or key", client)
	}
	return nil
}
