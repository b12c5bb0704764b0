// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"iter"
	"time"
)

// ListEventsOptions are the optional parameters of [Client.ListEvents].
type ListEventsOptions struct {
	// From: the beginning
	From time.Time
	// To: the end of the span, exclusive; default: now
	To time.Time
	// Client: KIND:ID
	Client string
	Rule   string
	// Kind: one of denied, admitted, degraded, dropped
	Kind string
	// Region: the region of the node
	Region string
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListEvents calls GET /v1/events: List the events that policies report; for a day if no
// span is given. Needs the role viewer or one above.
func (c *Client) ListEvents(ctx context.Context, o ListEventsOptions) (*EventsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/events"
	r.instant("from", o.From)
	r.instant("to", o.To)
	r.text("client", o.Client)
	r.text("rule", o.Rule)
	r.text("kind", o.Kind)
	r.text("region", o.Region)
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[EventsAnswer](ctx, c, r)
	return answer, err
}

// AllEvents returns the items of all pages of [Client.ListEvents], from o.After on. It ends
// after the first error.
func (c *Client) AllEvents(ctx context.Context, o ListEventsOptions) iter.Seq2[Event, error] {
	return pages(o.After, func(page string) ([]Event, string, error) {
		o := o
		o.After = page
		answer, err := c.ListEvents(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Events, answer.Next, nil
	})
}

// EventsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema EventsAnswerBody.
type EventsAnswer struct {
	// Events: the newest first
	Events []Event `json:"events"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
}

// Event is the JSON object that the OpenAPI document of the API describes in the schema
// Event.
type Event struct {
	At     time.Time `json:"at"`
	Client string    `json:"client,omitempty"`
	// Count: how many decisions the event stands for
	Count    int64  `json:"count"`
	Decision string `json:"decision,omitempty"`
	Event    int64  `json:"event"`
	IP       string `json:"ip,omitempty"`
	Kind     string `json:"kind"`
	// LatencyUs: how many microseconds the first of the decisions took
	LatencyUs int64  `json:"latency_us,omitempty"`
	Limit     string `json:"limit,omitempty"`
	Method    string `json:"method,omitempty"`
	Node      string `json:"node,omitempty"`
	Path      string `json:"path,omitempty"`
	Policy    string `json:"policy,omitempty"`
	Reason    string `json:"reason,omitempty"`
	// Region: the region of the node
	Region string `json:"region,omitempty"`
	// RetryAfterMs: of a denial: how many milliseconds the client was to wait, after the first
	// of the decisions
	RetryAfterMs int64   `json:"retry_after_ms,omitempty"`
	Rule         string  `json:"rule,omitempty"`
	Seconds      float64 `json:"seconds,omitempty"`
	// Share: the share of the decisions that are reported
	Share   float64 `json:"share"`
	State   string  `json:"state,omitempty"`
	Status  int64   `json:"status,omitempty"`
	Tier    string  `json:"tier,omitempty"`
	Version string  `json:"version,omitempty"`
}
