// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListChangesOptions are the optional parameters of [Client.ListChanges].
type ListChangesOptions struct {
	// Before: the field next of the previous page's answer
	Before int64
	Limit  int64
}

// ListChanges calls GET /v1/changes: List all changes. Needs the role viewer or one above.
func (c *Client) ListChanges(ctx context.Context, o ListChangesOptions) (*ChangesAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/changes"
	r.number("before", o.Before)
	r.number("limit", o.Limit)
	answer, _, err := call[ChangesAnswer](ctx, c, r)
	return answer, err
}

// AllChanges returns the items of all pages of [Client.ListChanges], from o.Before on. It
// ends after the first error.
func (c *Client) AllChanges(ctx context.Context, o ListChangesOptions) iter.Seq2[Change, error] {
	return pages(o.Before, func(page int64) ([]Change, int64, error) {
		o := o
		o.Before = page
		answer, err := c.ListChanges(ctx, o)
		if err != nil {
			return nil, 0, err
		}
		return answer.Changes, answer.Next, nil
	})
}

// VerifyChanges calls POST /v1/changes/verification: Read the whole audit trail and check
// its hashes. Needs the role admin or one above.
func (c *Client) VerifyChanges(ctx context.Context) (*VerifiedAnswer, error) {
	r := newRequest("POST")
	r.path = "/v1/changes/verification"
	answer, _, err := call[VerifiedAnswer](ctx, c, r)
	return answer, err
}

// ChangesAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema ChangesAnswerBody.
type ChangesAnswer struct {
	// Changes: the newest first
	Changes []Change `json:"changes"`
	// Next: pass it as the parameter before to get the next page; absent on the last page
	Next int64 `json:"next,omitempty"`
}

// Change is the JSON object that the OpenAPI document of the API describes in the schema
// Change.
type Change struct {
	Action string `json:"action"`
	Actor  string `json:"actor"`
	// After: the text of the record after the change; null if there is no record
	After *string   `json:"after"`
	At    time.Time `json:"at"`
	// Before: the text of the record before the change; null if there was no record
	Before *string `json:"before"`
	Change int64   `json:"change"`
	// Origin: the address that the change came from, or the command
	Origin string `json:"origin"`
	Reason string `json:"reason"`
	// Subject: KIND:ID of a client, or the name of a tier, token, policy or key
	Subject string `json:"subject"`
	// What: one of client, tier, token, policy, threshold, key
	What string `json:"what"`
}

// VerifiedAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema VerifiedAnswerBody.
type VerifiedAnswer struct {
	// Changes: how many changes are as they were written
	Changes int64 `json:"changes"`
	// Hash: the hash of the last change; keep it in another place, to notice if the history
	// was written anew
	Hash string `json:"hash"`
	// Problem: the first change that is not as it was written
	Problem string `json:"problem,omitempty"`
	Whole   bool   `json:"whole"`
}
