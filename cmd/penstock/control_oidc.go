// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/control/api"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/credential"
)

const (
	// oidcLifeMax is the longest life of a person's token, and so the longest time after which a
	// change of groups at the issuer has an effect.
	oidcLifeMax = 24 * time.Hour
	// The tokens of people are few, so less memory than for clients is enough.
	oidcTokensMax      = 4096
	oidcTokenBytesMax  = 8 << 20
	oidcGroupsClaimDef = "groups"
	oidcNameClaimDef   = "sub"
)

// oidcFlags are the flags for people who sign in at an issuer, as written.
type oidcFlags struct {
	issuer      string
	audience    []string
	roles       []string // ROLE=GROUP
	groupsClaim string
	nameClaim   string
}

func (f *oidcFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.issuer, "oidc-issuer", "", "accept the tokens that this OpenID Connect issuer signs for people: https://id.example.com/realm")
	flags.StringArrayVar(&f.audience, "oidc-audience", nil, "a `NAME` of this control plane at the issuer, which tokens must have in aud; may be repeated")
	flags.StringArrayVar(&f.roles, "oidc-role", nil, "`ROLE=GROUP` gives the members of a group a role: viewer, support, editor or admin; may be repeated")
	flags.StringVar(&f.groupsClaim, "oidc-groups-claim", oidcGroupsClaimDef, "the `CLAIM` of tokens with the groups; dots lead into objects")
	flags.StringVar(&f.nameClaim, "oidc-name-claim", oidcNameClaimDef, "the `CLAIM` of tokens with the name for the history, which people must not be able to choose")
}

// oidcFlags.open returns a verifier of the issuer's tokens, and its closer. The verifier is nil if
// the flags name no issuer.
func (f *oidcFlags) open(logger *slog.Logger) (io.Closer, api.People, error) {
	switch {
	case f.issuer == "" && (len(f.audience) > 0 || len(f.roles) > 0 || f.groupsClaim != oidcGroupsClaimDef || f.nameClaim != oidcNameClaimDef):
		return nil, nil, errors.New("--oidc-audience, --oidc-role, --oidc-groups-claim and --oidc-name-claim go with --oidc-issuer: give that as well, or leave them out")
	case f.issuer == "":
		return io.NopCloser(nil), nil, nil
	case len(f.audience) == 0 || slices.Contains(f.audience, ""):
		return nil, nil, errors.New("--oidc-issuer signs tokens for other programs as well: write --oidc-audience NAME, with the name of this one (its client ID)")
	case f.groupsClaim == "" || f.nameClaim == "":
		return nil, nil, errors.New("--oidc-groups-claim and --oidc-name-claim must not be empty: leave them out for groups and sub")
	}
	choose, err := chooseRole(f.roles)
	if err != nil {
		return nil, nil, err
	}
	people, err := credential.NewJWT(credential.JWTOptions{IssuerURL: f.issuer, Audience: f.audience, Claim: f.nameClaim, TierClaim: f.groupsClaim,
		ChooseTier: choose, LifeMax: oidcLifeMax, MemoryEntries: oidcTokensMax, MemoryBytes: oidcTokenBytesMax, Logger: logger})
	if err != nil {
		return nil, nil, fmt.Errorf("--oidc-issuer: %w", err)
	}
	return people, people, nil
}

// chooseRole returns a function that returns the greatest role that a person has by the given
// groups, or "" for none.
func chooseRole(pairs []string) (func(groups []string) string, error) {
	if len(pairs) == 0 {
		return nil, errors.New("--oidc-issuer gives nobody a role: write --oidc-role admin=GROUP for a group of the issuer")
	}
	byGroup := map[string]ledger.Role{}
	for _, pair := range pairs {
		name, group, ok := strings.Cut(pair, "=")
		role := ledger.Role(name)
		switch {
		case !ok || group == "":
			return nil, fmt.Errorf("--oidc-role %q has no group: write ROLE=GROUP, such as admin=operators", pair)
		case !role.OfPeople():
			return nil, fmt.Errorf("--oidc-role %q: %q is no role of people: write viewer, support, editor or admin", pair, name)
		case !byGroup[group].May(role):
			byGroup[group] = role
		}
	}
	return func(groups []string) string {
		greatest := ledger.Role("")
		for _, group := range groups {
			if role, ok := byGroup[group]; ok && !greatest.May(role) {
				greatest = role
			}
		}
		return string(greatest)
	}, nil
}
