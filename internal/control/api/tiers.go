// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
)

// TierPath is the parameter of each path that names a tier.
type TierPath struct {
	Tier string `path:"tier" maxLength:"255"`
}

type tierAnswer struct{ Body ledger.Tier }

type tiersAnswer struct {
	Body struct {
		Tiers []ledger.Tier `json:"tiers"`
		Next  string        `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type pageQuery struct {
	After string `query:"after" maxLength:"255" doc:"the field next of the previous page's answer"`
	Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000"`
}

// Resolve implements [huma.Resolver].
func (q *pageQuery) Resolve(huma.Context) []error { return checkStorable("after", q.After) }

// checkStorable returns an error if the value of a parameter cannot be stored in a row.
func checkStorable(name, value string) []error {
	if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
		return []error{&huma.ErrorDetail{Message: "the value has a NUL, or is not UTF-8; write one that is there", Location: "query." + name}}
	}
	return nil
}

type putTier struct {
	TierPath
	Body struct {
		Note string `json:"note,omitempty"`
		ledger.Sold
		Reason string `json:"reason" doc:"why, for the history"`
	}
}

// Reasoned is the query parameter with the reason for a write without a body.
type Reasoned struct {
	Reason string `query:"reason" required:"true" doc:"why, for the history"`
}

// tierOperations registers the operations on tiers.
func (a *API) tierOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/tiers", "list-tiers", "List the tiers that clients may have", ledger.Viewer),
		func(ctx context.Context, in *pageQuery) (*tiersAnswer, error) {
			found, err := a.o.Ledger.Tiers(ctx, in.After, in.Limit)
			if err != nil {
				return nil, a.problem(err)
			}
			answer := new(tiersAnswer)
			answer.Body.Tiers = append([]ledger.Tier{}, found...)
			if len(found) == in.Limit {
				answer.Body.Next = found[len(found)-1].Tier
			}
			return answer, nil
		})
	huma.Register(a.huma, operation(http.MethodPut, "/v1/tiers/{tier}", "put-tier", "Make a tier, or replace its note and what it is sold as", ledger.Editor),
		func(ctx context.Context, in *putTier) (*tierAnswer, error) {
			put, err := a.o.Ledger.PutTier(ctx, callerOf(ctx).actor, ledger.Tier{Tier: in.Tier, Note: in.Body.Note, Sold: in.Body.Sold}, in.Body.Reason)
			return &tierAnswer{put}, a.problem(err)
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/v1/tiers/{tier}", "delete-tier", "Remove a tier that no client has", ledger.Editor, 404),
		func(ctx context.Context, in *struct {
			TierPath
			Reasoned
		},
		) (*struct{}, error) {
			return nil, a.problem(a.o.Ledger.DeleteTier(ctx, callerOf(ctx).actor, in.Tier, in.Reason))
		})
}

type tokensAnswer struct {
	Body struct {
		Tokens []ledger.Token `json:"tokens"`
		Next   string         `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type newTokenAnswer struct {
	Body struct {
		ledger.Token
		Secret string `json:"secret" doc:"what to send as a bearer token; it is shown this once"`
	}
}

type newToken struct {
	Body struct {
		Name      string      `json:"name" doc:"who uses it, for the history"`
		Role      ledger.Role `json:"role" enum:"viewer,support,editor,admin,node"`
		ExpiresAt time.Time   `json:"expires_at" doc:"at most two years from now, in whole seconds"`
		Reason    string      `json:"reason" doc:"why, for the history"`
	}
}

// tokenOperations registers the operations on tokens.
func (a *API) tokenOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/tokens", "list-tokens", "List tokens, without their secrets", ledger.Admin),
		func(ctx context.Context, in *pageQuery) (*tokensAnswer, error) {
			found, err := a.o.Ledger.Tokens(ctx, in.After, in.Limit)
			if err != nil {
				return nil, a.problem(err)
			}
			answer := new(tokensAnswer)
			answer.Body.Tokens = append([]ledger.Token{}, found...)
			if len(found) == in.Limit {
				answer.Body.Next = found[len(found)-1].Token
			}
			return answer, nil
		})
	made := operation(http.MethodPost, "/v1/tokens", "new-token", "Make a token", ledger.Admin)
	made.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, made, func(ctx context.Context, in *newToken) (*newTokenAnswer, error) {
		secret, token, err := a.o.Ledger.NewToken(ctx, callerOf(ctx).actor, in.Body.Name, in.Body.Role, in.Body.ExpiresAt, in.Body.Reason)
		answer := new(newTokenAnswer)
		answer.Body.Token, answer.Body.Secret = token, secret
		return answer, a.problem(err)
	})
	huma.Register(a.huma, operation(http.MethodDelete, "/v1/tokens/{token}", "revoke-token", "Revoke a token at once", ledger.Admin, 404),
		func(ctx context.Context, in *struct {
			Token string `path:"token" maxLength:"255"`
			Reasoned
		},
		) (*struct{}, error) {
			return nil, a.problem(a.o.Ledger.Revoke(ctx, callerOf(ctx).actor, in.Token, in.Reason))
		})
}
