// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/http"
)

// Story is a policy and the requests that it is asked about, in turn, by a front whose counters nobody has used before.
type Story struct {
	ID        string // "FILE-NUMBER": the policy's name, unless it has one of its own
	Name      string
	Place     string // "FILE:LINE"
	Away      bool   // the store does not answer
	Policy    string // YAML
	Keys      []Key
	Tokens    []Token
	Exchanges []Exchange
	// Except says, by the name of a front, why the story is not told to it.
	Except map[string]string
}

// Key is an entry of the story's keys file, keys.toml.
type Key struct {
	ID   string
	Text string // TOML: what stands in the entry beside its id and hash
}

// Token is a token that the story's requests can carry.
type Token struct {
	Name   string
	Kind   string // secret, jwks or stranger: with what it is signed
	Expiry string // a duration from now; "never" for a token without
	Claims string // JSON
}

// Exchange is one request and what becomes of it.
type Exchange struct {
	Place   string
	Text    string
	Times   int // how often it is asked in a row
	Request Request
	Want    Want
	Other   map[string]Other // by the name of a front: what it answers instead
}

// Other is what a front answers that differs, and why it does.
type Other struct {
	Want Want
	Why  string
}

// For returns what the front is to answer.
func (e *Exchange) For(front string) Want {
	if other, ok := e.Other[front]; ok {
		return other.Want
	}
	return e.Want
}

// Request is a request as a client sends it.
type Request struct {
	Method string
	Target string // path and query, as they stand on the wire
	Host   string
	Header [][2]string // in order; values may name tokens and keys as <NAME> until the story is set
	Says   Says        // what the upstream answers if it is reached
}

// Says is what an upstream answers.
type Says struct {
	Status  int
	Header  [][2]string
	Trailer [][2]string
	Body    string
}

// Answer is what a front answered.
type Answer struct {
	Passed       bool // the upstream was reached, and this is its response
	Status       int
	Header       http.Header
	Body         string
	Since, Until int64 // Unix seconds between which the front has decided
	// Settled is how many units were charged, or given back where it is below zero, once the response was known. It is
	// of meaning where Counted is true: a front may know no more than that there was a settlement.
	Settled int64
	Counted bool
	Exact   bool // the clock stood at the corpus' instant
}

// upstreamField marks what comes from the upstream.
const upstreamField = "X-Upstream"
