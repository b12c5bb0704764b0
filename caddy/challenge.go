// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// challenge returns the WWW-Authenticate of a 401: the scheme of the credential that was refused, and what is wrong with
// it.
func (s *scratch) challenge(state core.CredentialState) string {
	credentials := s.plan.Credentials()
	for i := len(credentials) - 1; i >= 0; i-- {
		use := credentials[i]
		if use.State != state {
			continue
		}
		for _, e := range s.editions {
			if e.ruleset == use.Ruleset && use.Method < len(e.document.Identify) {
				return challenge(&e.document.Identify[use.Method], e.document.Name, state)
			}
		}
	}
	return "Bearer"
}

// challenge of one way to identify. A key that is not a bearer token has no scheme of its own that is registered: clients
// are told a name, and the policy's.
func challenge(way *policy.Identify, realm string, state core.CredentialState) string {
	scheme := "Bearer"
	if key := way.APIKey; key != nil && !key.Bearer {
		scheme = "ApiKey"
	}
	return scheme + ` realm="` + realm + `", error="invalid_token", error_description="the ` + what(way) + ` is ` +
		condition(state) + `"`
}

func what(way *policy.Identify) string {
	if way.APIKey != nil {
		return "key"
	}
	return "token"
}

// condition says what is wrong with a credential. Nobody learns which of its parts did not hold.
func condition(state core.CredentialState) string {
	switch state {
	case core.CredentialLapsed, core.CredentialExpired:
		return "expired"
	case core.CredentialRevoked, core.CredentialInactive, core.CredentialUnknown, core.CredentialMalformed:
		return state.String()
	default:
		return "invalid"
	}
}
