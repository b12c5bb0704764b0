// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"time"
)

// TopViolatorsOptions are the optional parameters of [Client.TopViolators].
type TopViolatorsOptions struct {
	// From: the beginning
	From time.Time
	// To: the end of the span, exclusive; default: now
	To     time.Time
	Policy string
	Rule   string
	Limit  int64
}

// TopViolators calls GET /v1/top: List the clients that were denied most. Needs the role
// viewer or one above.
func (c *Client) TopViolators(ctx context.Context, o TopViolatorsOptions) (*TopAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/top"
	r.instant("from", o.From)
	r.instant("to", o.To)
	r.text("policy", o.Policy)
	r.text("rule", o.Rule)
	r.number("limit", o.Limit)
	answer, _, err := call[TopAnswer](ctx, c, r)
	return answer, err
}

// TopAnswer is the JSON object that the OpenAPI document of the API describes in the schema
// TopAnswerBody.
type TopAnswer struct {
	// Clients: the one with most denials first
	Clients []Violator `json:"clients"`
	// From: the beginning of the hour in which the span begins
	From time.Time `json:"from"`
	// To: the end of the hour in which the span ends
	To time.Time `json:"to"`
}

// Violator is the JSON object that the OpenAPI document of the API describes in the schema
// Violator.
type Violator struct {
	// Client: KIND:ID; empty for clients beyond the bound of a node
	Client string `json:"client"`
	// Denied: how many requests were denied
	Denied int64  `json:"denied"`
	Policy string `json:"policy"`
	// Rule: the rule that denied most of them
	Rule string `json:"rule"`
}
