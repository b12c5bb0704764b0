// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListThresholdsOptions are the optional parameters of [Client.ListThresholds].
type ListThresholdsOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListThresholds calls GET /v1/thresholds: List the thresholds of usage. Needs the role
// viewer or one above.
func (c *Client) ListThresholds(ctx context.Context, o ListThresholdsOptions) (*ThresholdsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/thresholds"
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[ThresholdsAnswer](ctx, c, r)
	return answer, err
}

// AllThresholds returns the items of all pages of [Client.ListThresholds], from o.After on.
// It ends after the first error.
func (c *Client) AllThresholds(ctx context.Context, o ListThresholdsOptions) iter.Seq2[Threshold, error] {
	return pages(o.After, func(page string) ([]Threshold, string, error) {
		o := o
		o.After = page
		answer, err := c.ListThresholds(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Thresholds, answer.Next, nil
	})
}

// DeleteThreshold calls DELETE /v1/thresholds/{threshold}: Remove a threshold of usage.
// Needs the role admin or one above.
func (c *Client) DeleteThreshold(ctx context.Context, threshold string, reason string) error {
	r := newRequest("DELETE")
	r.path = "/v1/thresholds/"
	r.segment("threshold", threshold, "")
	r.text("reason", reason)
	_, _, err := c.send(ctx, r)
	return err
}

// PutThreshold calls PUT /v1/thresholds/{threshold}: Make or replace a threshold of usage.
// Needs the role admin or one above.
func (c *Client) PutThreshold(ctx context.Context, threshold string, body PutThreshold) (*Threshold, error) {
	r := newRequest("PUT")
	r.path = "/v1/thresholds/"
	r.segment("threshold", threshold, "")
	r.json(body)
	answer, _, err := call[Threshold](ctx, c, r)
	return answer, err
}

// ListNoticesOptions are the optional parameters of [Client.ListNotices].
type ListNoticesOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListNotices calls GET /v1/thresholds/{threshold}/notices: List what a threshold has told.
// Needs the role viewer or one above.
func (c *Client) ListNotices(ctx context.Context, threshold string, o ListNoticesOptions) (*NoticesAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/thresholds/"
	r.segment("threshold", threshold, "/notices")
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[NoticesAnswer](ctx, c, r)
	return answer, err
}

// AllNotices returns the items of all pages of [Client.ListNotices], from o.After on. It
// ends after the first error.
func (c *Client) AllNotices(ctx context.Context, threshold string, o ListNoticesOptions) iter.Seq2[Notice, error] {
	return pages(o.After, func(page string) ([]Notice, string, error) {
		o := o
		o.After = page
		answer, err := c.ListNotices(ctx, threshold, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Notices, answer.Next, nil
	})
}

// ThresholdsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema ThresholdsAnswerBody.
type ThresholdsAnswer struct {
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next       string      `json:"next,omitempty"`
	Thresholds []Threshold `json:"thresholds"`
}

// Threshold is the JSON object that the OpenAPI document of the API describes in the schema
// Threshold.
type Threshold struct {
	// Client: KIND:ID; absent for each client by itself
	Client string `json:"client,omitempty"`
	// Percents: shares of the quota, each told once a month
	Percents []int64 `json:"percents"`
	Policy   string  `json:"policy"`
	// Revision: the number of the latest change
	Revision  int64  `json:"revision"`
	Rule      string `json:"rule"`
	Threshold string `json:"threshold"`
	// Tier: only usage in this tier
	Tier string `json:"tier,omitempty"`
	// Units: the quota of a month
	Units     int64     `json:"units"`
	UpdatedAt time.Time `json:"updated_at"`
	// URL: who is told, by POST; only scheme and host for roles below admin
	URL string `json:"url"`
}

// PutThreshold is the JSON object that the OpenAPI document of the API describes in the
// schema PutThresholdBody.
type PutThreshold struct {
	// Client: KIND:ID; absent for each client by itself
	Client string `json:"client,omitempty"`
	// Percents: shares of the quota, each told once a month
	Percents []int64 `json:"percents"`
	Policy   string  `json:"policy"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	Rule   string `json:"rule"`
	// Tier: only usage in this tier
	Tier string `json:"tier,omitempty"`
	// Units: the quota of a calendar month of UTC
	Units int64 `json:"units"`
	// URL: who is told, by POST
	URL string `json:"url"`
}

// NoticesAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema NoticesAnswerBody.
type NoticesAnswer struct {
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
	// Notices: the newest first
	Notices []Notice `json:"notices"`
}

// Notice is the JSON object that the OpenAPI document of the API describes in the schema
// Notice.
type Notice struct {
	Attempts    int64     `json:"attempts"`
	Client      string    `json:"client"`
	DeliveredAt time.Time `json:"delivered_at,omitzero"`
	MadeAt      time.Time `json:"made_at"`
	// Month: the month, in UTC, such as 2026-11
	Month string `json:"month"`
	// NextAt: the next attempt; absent if it is delivered or given up
	NextAt time.Time `json:"next_at,omitzero"`
	// Notice: the identifier of the message: its header webhook-id
	Notice    string `json:"notice"`
	Percent   int64  `json:"percent"`
	Threshold string `json:"threshold"`
	// Trouble: why the last attempt failed
	Trouble string `json:"trouble,omitempty"`
	// Units: the quota
	Units int64 `json:"units"`
	// Used: the units used when the notice was made
	Used float64 `json:"used"`
}
