// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
)

// ListUsageOptions are the optional parameters of [Client.ListUsage].
type ListUsageOptions struct {
	// Month: a month of UTC, as 2026-11; default: the present month
	Month string
	// Client: KIND:ID
	Client string
	Policy string
	Rule   string
	// Region: only what nodes of this region reported
	Region string
	// By: a row for each region; usage of nodes without a region is left out; one of region
	By string
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListUsage calls GET /v1/usage: List what clients used in a month, for billing. Needs the
// role viewer or one above.
func (c *Client) ListUsage(ctx context.Context, o ListUsageOptions) (*UsageAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/usage"
	r.text("month", o.Month)
	r.text("client", o.Client)
	r.text("policy", o.Policy)
	r.text("rule", o.Rule)
	r.text("region", o.Region)
	r.text("by", o.By)
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[UsageAnswer](ctx, c, r)
	return answer, err
}

// AllUsage returns the items of all pages of [Client.ListUsage], from o.After on. It ends
// after the first error.
func (c *Client) AllUsage(ctx context.Context, o ListUsageOptions) iter.Seq2[Usage, error] {
	return pages(o.After, func(page string) ([]Usage, string, error) {
		o := o
		o.After = page
		answer, err := c.ListUsage(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Usage, answer.Next, nil
	})
}

// UsageAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema UsageAnswerBody.
type UsageAnswer struct {
	Month string `json:"month"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next  string  `json:"next,omitempty"`
	Usage []Usage `json:"usage"`
}

// Usage is the JSON object that the OpenAPI document of the API describes in the schema
// Usage.
type Usage struct {
	// Admitted: how many requests were admitted
	Admitted int64 `json:"admitted"`
	// Client: KIND:ID; empty for clients beyond the bound of a node
	Client string `json:"client"`
	// Denied: how many requests were denied
	Denied int64  `json:"denied"`
	Policy string `json:"policy"`
	// Region: with by=region: the region of the nodes
	Region string `json:"region,omitempty"`
	// Rule: empty for the policy itself: blocks, credentials and penalties
	Rule string `json:"rule"`
	Tier string `json:"tier"`
	// Units: the units of the admitted requests
	Units int64 `json:"units"`
}
