// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/http"
)

// Story is a policy and a sequence of requests. A front gets the requests in this order, with new
// counters.
type Story struct {
	ID        string // "FILE-NUMBER"; also the policy's name, unless the policy has one of its own
	Name      string
	Place     string // "FILE:LINE"
	Away      bool   // the store does not answer
	Policy    string // YAML
	Keys      []Key
	Tokens    []Token
	Exchanges []Exchange
	// Except maps a front to the reason why the story is not run with it.
	Except map[string]string
}

// Key is an entry of the story's keys file, keys.toml.
type Key struct {
	ID   string
	Text string // TOML: the entry without id and hash
}

// Token is a token that the story's requests can carry.
type Token struct {
	Name   string
	Kind   string // what the token is signed with: "secret", "jwks" or "stranger"
	Expiry string // a duration from now; "never" for none
	Claims string // JSON
}

// Exchange is one request and its expected answer.
type Exchange struct {
	Place   string
	Text    string
	Times   int // the number of times that the request is sent
	Request Request
	Want    Want
	Other   map[string]Other // the expected answers of fronts that differ, by front
}

// Other is the expected answer of a front that differs by design, with the reason.
type Other struct {
	Want Want
	Why  string
}

// For returns the answer that is expected of a front.
func (e *Exchange) For(front string) Want {
	if other, ok := e.Other[front]; ok {
		return other.Want
	}
	return e.Want
}

// Request is a request as a client sends it.
type Request struct {
	Method string
	Target string // path and query, as sent
	Host   string
	// Header holds the fields in order. Until Story.Write replaces them, values may contain names
	// of tokens and keys as <NAME>.
	Header [][2]string
	Says   Says // the upstream's response if the request reaches it
}

// Says describes a response of the upstream.
type Says struct {
	Status  int
	Header  [][2]string
	Trailer [][2]string
	Body    string
}

// Answer is a front's answer.
type Answer struct {
	Passed       bool // the upstream was reached, and this is its response
	Status       int
	Header       http.Header
	Body         string
	Since, Until int64 // Unix seconds between which the front decided
	// Settled is the number of units that the settlement charged. It is negative if units were
	// refunded. Settled is valid only if Counted is true. For some fronts, the test can observe a
	// settlement but not its units.
	Settled int64
	Counted bool
	Exact   bool // the front's clock stood at the instant of the corpus
}

// upstreamField marks responses of the upstream.
const upstreamField = "X-Upstream"
