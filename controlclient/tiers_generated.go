// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListTiersOptions are the optional parameters of [Client.ListTiers].
type ListTiersOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListTiers calls GET /v1/tiers: List the tiers that clients may have. Needs the role
// viewer or one above.
func (c *Client) ListTiers(ctx context.Context, o ListTiersOptions) (*TiersAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/tiers"
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[TiersAnswer](ctx, c, r)
	return answer, err
}

// AllTiers returns the items of all pages of [Client.ListTiers], from o.After on. It ends
// after the first error.
func (c *Client) AllTiers(ctx context.Context, o ListTiersOptions) iter.Seq2[Tier, error] {
	return pages(o.After, func(page string) ([]Tier, string, error) {
		o := o
		o.After = page
		answer, err := c.ListTiers(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Tiers, answer.Next, nil
	})
}

// DeleteTier calls DELETE /v1/tiers/{tier}: Remove a tier that no client has. Needs the
// role editor or one above.
func (c *Client) DeleteTier(ctx context.Context, tier string, reason string) error {
	r := newRequest("DELETE")
	r.path = "/v1/tiers/"
	r.segment("tier", tier, "")
	r.text("reason", reason)
	_, _, err := c.send(ctx, r)
	return err
}

// PutTier calls PUT /v1/tiers/{tier}: Make a tier, or replace its note and what it is sold
// as. Needs the role editor or one above.
func (c *Client) PutTier(ctx context.Context, tier string, body PutTier) (*Tier, error) {
	r := newRequest("PUT")
	r.path = "/v1/tiers/"
	r.segment("tier", tier, "")
	r.json(body)
	answer, _, err := call[Tier](ctx, c, r)
	return answer, err
}

// TiersAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema TiersAnswerBody.
type TiersAnswer struct {
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next  string `json:"next,omitempty"`
	Tiers []Tier `json:"tiers"`
}

// Tier is the JSON object that the OpenAPI document of the API describes in the schema
// Tier.
type Tier struct {
	// Currency: the currency of the price, such as USD
	Currency string `json:"currency,omitempty"`
	// DisplayName: a name for people
	DisplayName string `json:"display_name,omitempty"`
	Note        string `json:"note,omitempty"`
	// PriceCents: a month, in hundredths of the currency
	PriceCents int64 `json:"price_cents,omitempty"`
	// Revision: the number of the latest change
	Revision  int64     `json:"revision"`
	Tier      string    `json:"tier"`
	UpdatedAt time.Time `json:"updated_at"`
}

// PutTier is the JSON object that the OpenAPI document of the API describes in the schema
// PutTierBody.
type PutTier struct {
	// Currency: the currency of the price, such as USD
	Currency string `json:"currency,omitempty"`
	// DisplayName: a name for people
	DisplayName string `json:"display_name,omitempty"`
	Note        string `json:"note,omitempty"`
	// PriceCents: a month, in hundredths of the currency
	PriceCents int64 `json:"price_cents,omitempty"`
	// Reason: why, for the history
	Reason string `json:"reason"`
}
