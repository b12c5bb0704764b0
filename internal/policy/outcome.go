// SPDX-License-Identifier: Apache-2.0

package policy

// CostAfter says how to learn from a response what the request cost. It has either `header` or `json`.
type CostAfter struct {
	// A response header with the number of units.
	Header string `json:"header,omitempty"`

	// The path of a number in the body's JSON, such as `usage.total_tokens`. Of an event stream, the last event that has
	// it counts.
	JSON string `json:"json,omitempty"`

	// How many units are charged before the request goes on, until the response is known: at least 1. Required.
	Estimate int64 `json:"estimate,omitempty"`

	// How many units are charged if the response does not say, or says something absurd: at least 1. Default: the
	// estimate.
	Default *int64 `json:"default,omitempty"`

	// The most that the response may say; more is absurd. Default: 2^40.
	Max *int64 `json:"max,omitempty"`

	// How many units are charged if the cost could not be read for a reason that a client can bring about: it left before
	// the end, or the body is compressed in a way that is not read. What was read so far is charged if it is more. At least
	// 1. Default: `max`, or `default` if there is no `max`.
	Unread *int64 `json:"unread,omitempty"`
}

// Statuses says which responses are meant.
type Statuses struct {
	// The statuses: `401`, or `5xx` for 500 to 599; one or a list.
	Status StatusWords `json:"status,omitempty"`
}

// Throttle says how requests may wait instead of being refused.
type Throttle struct {
	// How long a request may wait, between 1ms and 1m. Required.
	MaxDelay string `json:"max_delay,omitempty"`

	// How many requests may wait for one counter on one proxy: 1 to 100000. Default: 1000.
	MaxWaiting *int `json:"max_waiting,omitempty"`
}

// Response is what a refused client is answered. What is left out stays as it is.
type Response struct {
	// The status: 400 to 599. Default: 429.
	Status *int `json:"status,omitempty"`

	// What the problem document says instead of its own sentence.
	Message string `json:"message,omitempty"`

	// The whole body, at most 64 KiB, instead of the problem document.
	Body string `json:"body,omitempty"`

	// The type of the body. Default: `application/json` if it is a JSON object or list, else `text/plain; charset=utf-8`.
	ContentType string `json:"content_type,omitempty"`

	// Further header fields.
	Headers map[string]string `json:"headers,omitempty"`
}

// Penalty makes clients that keep running into their limits wait longer each time. Every word is optional: an empty block
// is a penalty with all the defaults.
type Penalty struct {
	// How long a violation is remembered. Default: `1h`.
	Window string `json:"window,omitempty"`

	// From how many violations on there is a penalty. Default: 3.
	Threshold *int64 `json:"threshold,omitempty"`

	// By how much the wait is multiplied: the first number at the threshold, the next one a violation later, and the last
	// one from there on. Default: `[1, 2, 4, 8]`.
	Multipliers Numbers `json:"multipliers,omitempty"`

	// The longest penalty. Default: the window.
	Max string `json:"max,omitempty"`
}
