// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListMetricsOptions are the optional parameters of [Client.ListMetrics].
type ListMetricsOptions struct {
	// From: the beginning
	From time.Time
	// To: the end, which is not included; now if it is left out
	To time.Time
	// Granularity: one of minute, hour, day
	Granularity string
	// After: the next of the page before
	After string
	Limit int64
}

// ListMetrics calls GET /v1/metrics: List sums over all clients; a day if no span is said.
// Needs the role viewer or one above.
func (c *Client) ListMetrics(ctx context.Context, o ListMetricsOptions) (*MetricsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/metrics"
	r.instant("from", o.From)
	r.instant("to", o.To)
	r.text("granularity", o.Granularity)
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[MetricsAnswer](ctx, c, r)
	return answer, err
}

// AllMetrics returns the items of all pages of [Client.ListMetrics], from o.After on. It
// ends after the first error.
func (c *Client) AllMetrics(ctx context.Context, o ListMetricsOptions) iter.Seq2[Metric, error] {
	return pages(o.After, func(page string) ([]Metric, string, error) {
		o := o
		o.After = page
		answer, err := c.ListMetrics(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Metrics, answer.Next, nil
	})
}

// MetricsAnswer is a part of a body or an answer.
type MetricsAnswer struct {
	// Metrics: the oldest first
	Metrics []Metric `json:"metrics"`
	// Next: the value of after for the next page; absent on the last
	Next string `json:"next,omitempty"`
}

// Metric is a part of a body or an answer.
type Metric struct {
	// Admitted: requests
	Admitted int64     `json:"admitted"`
	At       time.Time `json:"at"`
	// Denied: requests
	Denied int64  `json:"denied"`
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	Tier   string `json:"tier"`
	// Units: of the requests that were admitted
	Units int64 `json:"units"`
}
