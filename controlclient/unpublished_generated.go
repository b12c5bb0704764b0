// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListUnpublishedOptions are the optional parameters of [Client.ListUnpublished].
type ListUnpublishedOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListUnpublished calls GET /v1/unpublished: List clients, API keys and policies whose rows
// are not valid; their last valid state stays published. Needs the role viewer or one
// above.
func (c *Client) ListUnpublished(ctx context.Context, o ListUnpublishedOptions) (*UnpublishedAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/unpublished"
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[UnpublishedAnswer](ctx, c, r)
	return answer, err
}

// AllUnpublished returns the items of all pages of [Client.ListUnpublished], from o.After
// on. It ends after the first error.
func (c *Client) AllUnpublished(ctx context.Context, o ListUnpublishedOptions) iter.Seq2[Unpublished, error] {
	return pages(o.After, func(page string) ([]Unpublished, string, error) {
		o := o
		o.After = page
		answer, err := c.ListUnpublished(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Unpublished, answer.Next, nil
	})
}

// UnpublishedAnswer is the JSON object that the OpenAPI document of the API describes in
// the schema UnpublishedAnswerBody.
type UnpublishedAnswer struct {
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next        string        `json:"next,omitempty"`
	Unpublished []Unpublished `json:"unpublished"`
}

// Unpublished is the JSON object that the OpenAPI document of the API describes in the
// schema Unpublished.
type Unpublished struct {
	// ID: the identifier of a client, the SHA-256 of a key, or the name of a policy
	ID string `json:"id"`
	// Kind: the kind of a client; ~key for an API key, ~policy for a policy
	Kind    string    `json:"kind"`
	Problem string    `json:"problem"`
	Since   time.Time `json:"since"`
}
