// SPDX-License-Identifier: Apache-2.0

package front

import (
	"net/http"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/status"
)

// asksStatus reports whether the request asks for the client's own limits.
func (s *Stream) asksStatus() bool {
	q := &s.request.Ask
	return s.front.settings.StatusPath != "" && q.Path == s.front.settings.StatusPath &&
		(q.Method == http.MethodGet || q.Method == http.MethodHead)
}

// tellStatus makes the request wait until a goroutine has read the client's limits, or denies it if
// there are too many such requests. Nothing is charged.
func (s *Stream) tellStatus(waker Waker) Verdict {
	ok, busy := s.front.process.statuses.Enter(s.request.Ask.Peer, time.Now())
	if !ok {
		code := uint32(http.StatusTooManyRequests)
		if busy {
			code = http.StatusServiceUnavailable
		}
		return s.respond(plainResponse(code, "too many requests for limits: try again in a second", "retry-after", "1"), "")
	}
	s.waker = waker
	s.holds.Add(1) // for the goroutine
	s.front.enter()
	waker.Waits()
	go func() {
		defer s.front.process.statuses.Leave()
		s.wakeRequest(s.lookUp())
	}()
	return Wait
}

// lookUp reads the client's limits and responds with them.
func (s *Stream) lookUp() (v Verdict) {
	defer s.rescue(&v)
	var answer status.Answer
	look := &status.Looker{Store: s.front.store.Requests, Directory: s.front.store.directory, Plan: &s.plan}
	rs := look.Choose(func(p *core.Plan) *core.Ruleset { return s.version.Choose(p, &s.request.View).Ruleset })
	if err := answer.Add(look, rs, &s.request.View); err != nil {
		return s.respond(plainResponse(http.StatusServiceUnavailable, "the limits cannot be read at present", "retry-after", "1"), "")
	}
	if answer.Denied() {
		return s.respond(plainResponse(http.StatusUnauthorized, "the credential was rejected", "www-authenticate", status.Challenge), "")
	}
	text, err := answer.JSON()
	if err != nil {
		panic(err) // an answer can always be marshaled
	}
	return s.respond(response.Response{Status: http.StatusOK, Body: text,
		Headers: [][2]string{{"content-type", "application/json"}, {"cache-control", "no-store"}}}, "")
}

// plainResponse returns a plain text response that also has the given header field.
func plainResponse(code uint32, text, name, value string) response.Response {
	return response.Response{Status: code, Body: []byte(text + "\n"),
		Headers: [][2]string{{"content-type", "text/plain; charset=utf-8"}, {"cache-control", "no-store"}, {name, value}}}
}
