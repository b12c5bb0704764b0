// SPDX-License-Identifier: Apache-2.0

package policyfile

// CostAfter describes how to read a request's cost from the response. A CostAfter has either
// `header` or `json`.
type CostAfter struct {
	// A response header with the number of units.
	Header string `json:"header,omitempty"`

	// The path of a number in the JSON body, such as `usage.total_tokens`. In an event stream, the
	// last event with the number counts.
	JSON string `json:"json,omitempty"`

	// How many units are charged before the request is forwarded: at least 1. Required.
	Estimate int64 `json:"estimate,omitempty"`

	// How many units are charged if the response has no valid cost: at least 1. Default: the
	// estimate.
	Default *int64 `json:"default,omitempty"`

	// The highest valid cost. Default: 2^40.
	Max *int64 `json:"max,omitempty"`

	// How many units are charged if the cost could not be read for a reason that a client can
	// cause: the client disconnected before the end, or the body uses an unsupported compression.
	// If a higher cost has already been read, that cost is charged. At least 1. Default: `max`, or
	// `default` if there is no `max`.
	Unread *int64 `json:"unread,omitempty"`
}

// Statuses selects responses by status.
type Statuses struct {
	// The statuses: `401`, or `5xx` for 500 to 599; one or a list.
	Status StatusWords `json:"status,omitempty"`
}

// Throttle bounds how many requests may wait instead of being denied, and for how long.
type Throttle struct {
	// How long a request may wait, between 1ms and 1m. Required.
	MaxDelay string `json:"max_delay,omitempty"`

	// How many requests may wait for one limit of a counter on one proxy: 1 to 100000. Default:
	// 1000.
	MaxWaiting *int `json:"max_waiting,omitempty"`
}

// Response changes the answer to a denied client. Fields that are omitted keep their defaults.
type Response struct {
	// The status: 400 to 599. Default: 429.
	Status *int `json:"status,omitempty"`

	// The detail of the problem document, in place of the built-in one.
	Message string `json:"message,omitempty"`

	// The whole body, at most 64 KiB, instead of the problem document.
	Body string `json:"body,omitempty"`

	// The type of the body. Default: `application/json` if it is a JSON object or list, else
	// `text/plain; charset=utf-8`.
	ContentType string `json:"content_type,omitempty"`

	// Further header fields.
	Headers map[string]string `json:"headers,omitempty"`
}

// Penalty makes clients that repeatedly exceed their limits wait longer each time. Every field is
// optional: an empty block is a penalty with all the defaults.
type Penalty struct {
	// How long a violation counts. Default: `1h`.
	Window string `json:"window,omitempty"`

	// The number of violations at which a penalty begins. Default: 3.
	Threshold *int64 `json:"threshold,omitempty"`

	// The factors of the wait: the first at the threshold, the next one violation later, and the
	// last for all further violations. Default: `[1, 2, 4, 8]`.
	Multipliers Numbers `json:"multipliers,omitempty"`

	// The longest penalty. Default: the window.
	Max string `json:"max,omitempty"`
}
