// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/core"
)

// StreamKey is the key of the metadata with which Envoy marks its calls, if the configuration of
// its filter contains this line. The protocol itself does not say when a call is made.
//
//	initial_metadata: [{ key: penstock-stream, value: "ended=%RESPONSE_CODE_DETAILS%,%UPSTREAM_HOST%" }]
//
// Envoy has an upstream host from the moment the request is passed on, and details from the moment
// a response begins. So both are empty in a call for a request, and one of them is present in a
// call at the end of a stream (apply_on_stream_done). The details alone would not be enough: they
// are empty if a client resets its stream over HTTP/3 before the response. The response code would
// not distinguish the calls at all: it is 100 in a call for a request with "Expect: 100-continue",
// and 0 at the end of a stream that was reset. A client cannot set the metadata of Envoy's calls.
const StreamKey = "penstock-stream"

// endedPrefix is the constant part of the value of StreamKey.
const endedPrefix = "ended="

// phase says when in a stream Envoy makes a call.
type phase uint8

const (
	phaseUnknown phase = iota
	phaseRequest       // before the request is passed on
	phaseEnded
	// phaseRefused is the end of a stream whose request a rate limit filter has denied, so that the
	// request has used nothing.
	phaseRefused
)

// phaseOf returns the phase of the call to which ctx belongs. Versions of Envoy that do not
// evaluate metadata send the names of the values instead of the values.
func phaseOf(ctx context.Context) phase {
	sent := metadata.ValueFromIncomingContext(ctx, StreamKey)
	if len(sent) != 1 {
		return phaseUnknown
	}
	values, marked := strings.CutPrefix(sent[0], endedPrefix)
	comma := strings.LastIndexByte(values, ',') // details can contain commas
	if !marked || comma < 0 || strings.HasPrefix(values, "%") {
		return phaseUnknown
	}
	details, passedOn := values[:comma], isPresent(values[comma+1:])
	switch {
	case passedOn:
		return phaseEnded
	case details == "request_rate_limited" || details == "rate_limiter_error":
		return phaseRefused
	case isPresent(details):
		return phaseEnded
	}
	return phaseRequest
}

// isPresent reports whether Envoy has a value. Some versions of Envoy write a hyphen for a value
// that is absent.
func isPresent(value string) bool { return value != "" && value != "-" }

// Service.pastOf returns whether the own hits of the request's descriptors have already happened,
// if they are charged.
func (s *Service) pastOf(p phase, request *pb.RateLimitRequest) core.Past {
	charged, refunded := ownHits(request)
	if p == phaseUnknown && (charged || refunded) {
		s.options.Observer.Unmarked()
	}
	switch {
	case p == phaseRequest || !charged:
		return core.PastNo
	case p == phaseUnknown:
		return core.PastMaybe
	}
	return core.PastYes
}

// ownHits reports whether descriptors of the request have hits of their own that are to be charged
// or to be refunded.
func ownHits(request *pb.RateLimitRequest) (charged, refunded bool) {
	for _, d := range request.GetDescriptors() {
		if d.GetHitsAddend().GetValue() > 0 {
			charged, refunded = charged || !d.GetIsNegativeHits(), refunded || d.GetIsNegativeHits()
		}
	}
	return charged, refunded
}
