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
	// To: the end of the span, exclusive; default: now
	To time.Time
	// Granularity: one of minute, hour, day
	Granularity string
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListMetrics calls GET /v1/metrics: List sums over all clients; for a day if no span is
// given. Needs the role viewer or one above.
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

// ListActiveClientsOptions are the optional parameters of [Client.ListActiveClients].
type ListActiveClientsOptions struct {
	// From: the beginning
	From time.Time
	// To: the end of the span, exclusive; default: now
	To time.Time
	// Client: KIND:ID
	Client string
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListActiveClients calls GET /v1/metrics/clients: List what the 1,000 most active clients
// of each minute used, and all others together; for a day if no span is given. Needs the
// role viewer or one above.
func (c *Client) ListActiveClients(ctx context.Context, o ListActiveClientsOptions) (*ActiveAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/metrics/clients"
	r.instant("from", o.From)
	r.instant("to", o.To)
	r.text("client", o.Client)
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[ActiveAnswer](ctx, c, r)
	return answer, err
}

// AllActiveClients returns the items of all pages of [Client.ListActiveClients], from
// o.After on. It ends after the first error.
func (c *Client) AllActiveClients(ctx context.Context, o ListActiveClientsOptions) iter.Seq2[Active, error] {
	return pages(o.After, func(page string) ([]Active, string, error) {
		o := o
		o.After = page
		answer, err := c.ListActiveClients(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Clients, answer.Next, nil
	})
}

// ListEndpointsOptions are the optional parameters of [Client.ListEndpoints].
type ListEndpointsOptions struct {
	// From: the beginning
	From time.Time
	// To: the end of the span, exclusive; default: now
	To time.Time
	// Granularity: one of minute, hour, day
	Granularity string
	Policy      string
	Rule        string
	// Region: the region of the nodes
	Region string
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListEndpoints calls GET /v1/metrics/endpoints: List the decisions of each path pattern
// and how long they took; for a day if no span is given. Needs the role viewer or one
// above.
func (c *Client) ListEndpoints(ctx context.Context, o ListEndpointsOptions) (*EndpointsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/metrics/endpoints"
	r.instant("from", o.From)
	r.instant("to", o.To)
	r.text("granularity", o.Granularity)
	r.text("policy", o.Policy)
	r.text("rule", o.Rule)
	r.text("region", o.Region)
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[EndpointsAnswer](ctx, c, r)
	return answer, err
}

// AllEndpoints returns the items of all pages of [Client.ListEndpoints], from o.After on.
// It ends after the first error.
func (c *Client) AllEndpoints(ctx context.Context, o ListEndpointsOptions) iter.Seq2[Endpoint, error] {
	return pages(o.After, func(page string) ([]Endpoint, string, error) {
		o := o
		o.After = page
		answer, err := c.ListEndpoints(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Endpoints, answer.Next, nil
	})
}

// MetricsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema MetricsAnswerBody.
type MetricsAnswer struct {
	// Metrics: the oldest first
	Metrics []Metric `json:"metrics"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
}

// Metric is the JSON object that the OpenAPI document of the API describes in the schema
// Metric.
type Metric struct {
	// Admitted: how many requests were admitted
	Admitted int64     `json:"admitted"`
	At       time.Time `json:"at"`
	// Denied: how many requests were denied
	Denied int64  `json:"denied"`
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	Tier   string `json:"tier"`
	// Units: the units of the admitted requests
	Units int64 `json:"units"`
}

// ActiveAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema ActiveAnswerBody.
type ActiveAnswer struct {
	// Clients: the oldest minute first
	Clients []Active `json:"clients"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
}

// Active is the JSON object that the OpenAPI document of the API describes in the schema
// Active.
type Active struct {
	// Admitted: how many requests were admitted
	Admitted int64     `json:"admitted"`
	At       time.Time `json:"at"`
	// Client: KIND:ID; empty for all but the 1,000 most active clients of the minute
	Client string `json:"client"`
	// Denied: how many requests were denied
	Denied int64  `json:"denied"`
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	// Units: the units of the admitted requests
	Units int64 `json:"units"`
}

// EndpointsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema EndpointsAnswerBody.
type EndpointsAnswer struct {
	// Endpoints: the oldest first
	Endpoints []Endpoint `json:"endpoints"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
}

// Endpoint is the JSON object that the OpenAPI document of the API describes in the schema
// Endpoint.
type Endpoint struct {
	// Admitted: how many requests were admitted
	Admitted int64     `json:"admitted"`
	At       time.Time `json:"at"`
	// Denied: how many requests were denied
	Denied int64 `json:"denied"`
	// Endpoint: a path pattern of the rule; empty for a rule without a path
	Endpoint string `json:"endpoint"`
	// P50Us: half of the decisions took at most this number of microseconds
	P50Us  float64 `json:"p50_us"`
	P95Us  float64 `json:"p95_us"`
	P99Us  float64 `json:"p99_us"`
	Policy string  `json:"policy"`
	Region string  `json:"region"`
	Rule   string  `json:"rule"`
}
