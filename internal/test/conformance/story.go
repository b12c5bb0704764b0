// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/http"
)

// Story is a policy and the requests that a front with new counters gets in turn.
type Story struct {
	ID        string // "FILE-NUMBER": the policy's name, unless it has its own
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
	Text string // TOML: the entry's text besides id and hash
}

// Token is a token that the story's requests can carry.
type Token struct {
	Name   string
	Kind   string // secret, jwks or stranger: what the token is signed with
	Expiry string // a duration from now; "never" for none
	Claims string // JSON
}

// Exchange is one request and its expected answer.
type Exchange struct {
	Place   string
	Text    string
	Times   int // the number of times it is sent
	Request Request
	Want    Want
	Other   map[string]Other // the differing answers, by front
}

// Other is an answer of a front that differs by design, with the reason.
type Other struct {
	Want Want
	Why  string
}

// For returns the expected answer of a front.
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
	// in order; values may name tokens and keys as <NAME> until the story is written
	Header [][2]string
	Says   Says // the upstream's response if it is reached
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
	// Settled is the number of units that were charged when the response was known, or negative if
	// they were refunded. Settled is valid if Counted is true, because for some fronts only the
	// fact of a settlement can be observed.
	Settled int64
	Counted bool
	Exact   bool // the clock stood at the corpus' instant
}

// upstreamField marks responses of the upstream.
const upstreamField = "X-Upstream"
