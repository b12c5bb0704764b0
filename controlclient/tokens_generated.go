// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListTokensOptions are the optional parameters of [Client.ListTokens].
type ListTokensOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListTokens calls GET /v1/tokens: List tokens, without their secrets. Needs the role admin
// or one above.
func (c *Client) ListTokens(ctx context.Context, o ListTokensOptions) (*TokensAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/tokens"
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[TokensAnswer](ctx, c, r)
	return answer, err
}

// AllTokens returns the items of all pages of [Client.ListTokens], from o.After on. It ends
// after the first error.
func (c *Client) AllTokens(ctx context.Context, o ListTokensOptions) iter.Seq2[Token, error] {
	return pages(o.After, func(page string) ([]Token, string, error) {
		o := o
		o.After = page
		answer, err := c.ListTokens(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Tokens, answer.Next, nil
	})
}

// NewToken calls POST /v1/tokens: Make a token. Needs the role admin or one above.
func (c *Client) NewToken(ctx context.Context, body NewToken) (*NewTokenAnswer, error) {
	r := newRequest("POST")
	r.path = "/v1/tokens"
	r.json(body)
	answer, _, err := call[NewTokenAnswer](ctx, c, r)
	return answer, err
}

// RevokeToken calls DELETE /v1/tokens/{token}: Revoke a token at once. Needs the role admin
// or one above.
func (c *Client) RevokeToken(ctx context.Context, token string, reason string) error {
	r := newRequest("DELETE")
	r.path = "/v1/tokens/"
	r.segment("token", token, "")
	r.text("reason", reason)
	_, _, err := c.send(ctx, r)
	return err
}

// TokensAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema TokensAnswerBody.
type TokensAnswer struct {
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next   string  `json:"next,omitempty"`
	Tokens []Token `json:"tokens"`
}

// Token is the JSON object that the OpenAPI document of the API describes in the schema
// Token.
type Token struct {
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	ExpiresAt time.Time `json:"expires_at"`
	// Name: who uses it, for the history
	Name      string    `json:"name"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	// Role: one of viewer, support, editor, admin, node
	Role string `json:"role"`
	// Token: the token's identifier; it is not secret
	Token string `json:"token"`
}

// NewToken is the JSON object that the OpenAPI document of the API describes in the schema
// NewTokenBody.
type NewToken struct {
	// ExpiresAt: at most two years from now, in whole seconds
	ExpiresAt time.Time `json:"expires_at"`
	// Name: who uses it, for the history
	Name string `json:"name"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Role: one of viewer, support, editor, admin, node
	Role string `json:"role"`
}

// NewTokenAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema NewTokenAnswerBody.
type NewTokenAnswer struct {
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	ExpiresAt time.Time `json:"expires_at"`
	// Name: who uses it, for the history
	Name      string    `json:"name"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	// Role: one of viewer, support, editor, admin, node
	Role string `json:"role"`
	// Secret: what to send as a bearer token; it is shown this once
	Secret string `json:"secret"`
	// Token: the token's identifier; it is not secret
	Token string `json:"token"`
}
