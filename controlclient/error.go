// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is an answer of status 400 or above, a redirect, or the status 304, which says that the
// caller already has the text that it asked for.
type Error struct {
	Status   int // such as 412, if the record has changed since it was read
	Title    string
	Detail   string
	Problems []Problem // what is wrong in an invalid write
	// RetryAfter is how long to wait before another attempt; 0 if the control plane does not say.
	RetryAfter time.Duration
}

// Problem is one thing that is wrong in a request.
type Problem struct {
	Place  string          `json:"location"` // such as body.limits
	Value  json.RawMessage `json:"value"`    // what is there, as JSON; empty if it is not reported
	Remedy string          `json:"message"`  // what is wrong with it and what to write instead
}

// Error implements error.
func (e *Error) Error() string {
	text := "the control plane answered " + strconv.Itoa(e.Status) + " " + e.Title + ": " + e.Detail
	for _, p := range e.Problems {
		text += "; " + p.Place + ": " + p.Remedy
	}
	return text
}

// detailBytesMax bounds the part of an answer that an error contains if the answer is not a problem
// document.
const detailBytesMax = 300

// newError returns the error in an answer.
func newError(response *http.Response, text []byte) *Error {
	e := &Error{Status: response.StatusCode, Title: http.StatusText(response.StatusCode)}
	var document struct {
		Detail string    `json:"detail"`
		Errors []Problem `json:"errors"`
	}
	if json.Unmarshal(text, &document) == nil && document.Detail != "" {
		e.Detail, e.Problems = document.Detail, document.Errors
	} else {
		e.Detail = strings.ToValidUTF8(strings.TrimSpace(string(text[:min(len(text), detailBytesMax)])), "")
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(min(seconds, 24*60*60)) * time.Second
	}
	return e
}
