// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/netip"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
)

// People verifies the tokens that an issuer signs for people. The user of an identity is the name
// of a person, and the tier is the person's role, or "" if the person has none.
type People interface {
	policy.CostlyVerifier
	// Ready returns a channel that is closed when the issuer's keys have arrived.
	Ready() <-chan struct{}
}

// personTime bounds how long a token waits for a processor while others are verified.
const personTime = 500 * counter.Millisecond

// API.person returns the caller who has sent a token of the issuer. The parameter host is the
// address of the caller.
func (a *API) person(host, token string) (by requester, no *refusal) {
	left := personTime
	asker := policy.Asker{Left: &left}
	if addr, err := netip.ParseAddr(host); err == nil {
		asker.Addr = addr.Unmap().WithZone("")
	}
	id, state := a.o.People.VerifyFor(&asker, token)
	switch {
	case state == policy.CredentialExpired:
		return by, &refusal{http.StatusUnauthorized, "the token has expired, or is not valid yet: ask the issuer for another one"}
	case state != policy.CredentialValid:
		return by, a.notVerified(asker.Unchecked)
	}
	name, err := ledger.PersonName(id.User)
	if err != nil {
		return by, &refusal{http.StatusForbidden, err.Error() + "; --oidc-name-claim can name another claim of the token"}
	}
	role := ledger.Role(id.Tier)
	if !role.OfPeople() {
		return by, &refusal{http.StatusForbidden, "the token of " + name + " is valid, and names no group that has a role here: " +
			"join one at the issuer, and ask it for another token"}
	}
	return requester{ledger.Actor{Name: name, Origin: host}, role}, nil
}

// notVerified returns the answer to a token that is not valid. The parameter unchecked is true if
// no time was left to check the token.
func (a *API) notVerified(unchecked bool) *refusal {
	if unchecked {
		return &refusal{http.StatusServiceUnavailable, "the token was not checked, because too many tokens that the issuer has not signed arrive; try again"}
	}
	select {
	case <-a.o.People.Ready():
		return &refusal{http.StatusUnauthorized, "the issuer has not signed this token for this control plane: " +
			"its form, signature, issuer, audience, lifetime, name or groups are wrong; see the log of the control plane, and ask the issuer for another one"}
	default:
		return &refusal{http.StatusServiceUnavailable, "the issuer has not sent its keys yet; try again, or use a token of the control plane"}
	}
}
