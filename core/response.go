// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strconv"
	"strings"
)

// The content types of refusals.
const (
	contentProblem = "application/problem+json"
	contentJSON    = "application/json"
	contentText    = "text/plain; charset=utf-8"
)

// BodyContentType returns the content type of a body that is given without one: that of JSON if the body is an object
// or a list of JSON, that of text otherwise, none for no body. It is for sources of policies: the filter does not parse
// JSON, which would be 11 KB of its size.
func BodyContentType(body string) string {
	switch {
	case body == "":
		return ""
	case (body[0] == '{' || body[0] == '[') && validJSON(body):
		return contentJSON
	default:
		return contentText
	}
}

// compileResponse returns a copy with its defaults filled in: the names of headers are canonical, and a body has a
// content type. What the source of the policy has left out is decided by the body's first byte.
func compileResponse(source *Response) *Response {
	if source == nil {
		return nil
	}
	r := *source
	r.Headers = slices.Clone(source.Headers)
	for i := range r.Headers {
		r.Headers[i].Name = canonicalHeader(r.Headers[i].Name)
	}
	if r.Body != "" && r.ContentType == "" {
		if r.ContentType = contentText; r.Body[0] == '{' || r.Body[0] == '[' {
			r.ContentType = contentJSON
		}
	}
	return &r
}

// ContentType returns the content type of what [Plan.AppendProblem] appends.
func (d *Decision) ContentType() string {
	if d.Response != nil && d.Response.ContentType != "" {
		return d.Response.ContentType
	}
	return contentProblem
}

// respond lets the rule that refused say what is answered.
func (d *Decision) respond(r *rule) {
	if d.Response = r.after.response; d.Response != nil && d.Response.Status != 0 {
		d.Status = d.Response.Status
	}
}

// retryAfter returns how long a refused client is told to wait, by all that refuses it: the true wait, or what a rule puts in
// its place if that is longer, and the rule's jitter. It is Never if the cost can never pass.
func (p *Plan) retryAfter() (longest Micros) {
	for i := range p.results {
		result := &p.results[i]
		if !result.Refused || p.checks[i].Shadow {
			continue
		}
		wait := result.Wait
		if after := &p.ruleOf(i).after; wait != Never {
			wait = max(wait, after.retryAfter) + jitter(p.checks[i].Key, result.At, after.retryJitter)
		}
		longest = max(longest, wait)
	}
	return longest
}

// jitter returns a span from 0 to most that differs from counter to counter and from instant to instant, so that clients
// that were refused together do not come back together. Nobody gains from knowing it in advance, so it needs no random
// source: the same counter at the same instant has the same.
func jitter(key []byte, at, most Micros) Micros {
	if most == 0 {
		return 0
	}
	hash := fnv(key)
	for shift := 0; shift < 64; shift += 8 {
		hash = (hash ^ uint64(at)>>shift&0xff) * fnvPrime
	}
	// FNV mixes upwards, so its low bits are poor; what is above them is as good as random for this.
	return Micros((hash ^ hash>>32) % uint64(most+1))
}

// Codes of gRPC. They are what these refusals mean there, whatever HTTP status a rule answers with.
const (
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

// GRPCStatus returns the code and the message that a refusal has in gRPC, the message percent-encoded as the field
// grpc-message wants it: 8 (resource exhausted) for limits and penalties, 16 (unauthenticated) for credentials, 7
// (permission denied) for what is forbidden, 14 (unavailable) where the store did not answer. The code is 0 for a request
// that goes on.
func GRPCStatus(d *Decision) (code int, message string) {
	if code = grpcCode(d); code == 0 {
		return 0, ""
	}
	var scratch [128]byte
	return code, percentEncoded(appendDetail(scratch[:0], d))
}

// Detail returns what a refusal says to people, in plain text; "" for a request that goes on.
func (d *Decision) Detail() string {
	if grpcCode(d) == 0 {
		return ""
	}
	return string(appendDetail(nil, d))
}

// GRPCContentType returns the content type of an answer to a gRPC request, by the content type that the request has; "" for
// one that is no gRPC.
func GRPCContentType(asked string) string {
	if !strings.HasPrefix(asked, "application/grpc") {
		return ""
	}
	for _, kind := range [...]string{"application/grpc-web-text", "application/grpc-web", "application/grpc"} {
		// The encoding of messages may follow, as in application/grpc+proto. application/grpcx is something else.
		if rest, ok := strings.CutPrefix(asked, kind); ok && (rest == "" || strings.IndexByte("+; ", rest[0]) >= 0) {
			return kind
		}
	}
	return ""
}

func grpcCode(d *Decision) int {
	switch d.Outcome {
	case OutcomeDenied, OutcomePenalized, OutcomeOversized:
		return grpcResourceExhausted
	case OutcomeUnauthorized:
		return grpcUnauthenticated
	case OutcomeBlocked, OutcomeMissing:
		return grpcPermissionDenied
	case OutcomeDegradedDenied:
		return grpcUnavailable
	default:
		return 0
	}
}

// percentEncoded returns the text as gRPC wants it in a header: what is not printable ASCII, and the percent sign, as %XX.
func percentEncoded(text []byte) string {
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(text))
	for _, c := range text {
		if c < ' ' || c > '~' || c == '%' {
			out = append(out, '%', hex[c>>4], hex[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

// appendDetail appends what a refusal says to people: what the rule says, or else why it is one. It holds no name, claim
// or identifier of a client.
func appendDetail(dst []byte, d *Decision) []byte {
	text := detail(d)
	if text == "" {
		return appendTryAgain(dst, d)
	}
	return append(dst, text...)
}

// detail returns what a refusal says to people, "" if that is when to try again.
func detail(d *Decision) string {
	if d.Response != nil && d.Response.Message != "" {
		return d.Response.Message
	}
	switch d.Outcome {
	case OutcomeUnauthorized:
		return credentialDetails[d.Credential]
	case OutcomeOversized:
		if d.Status == statusURITooLong {
			return detailURITooLong
		}
		return detailFieldsLarge
	case OutcomeMissing:
		return detailMissing
	case OutcomeDegradedDenied:
		return detailUnavailable
	case OutcomeDenied, OutcomePenalized:
		if d.RetryAfter == Never {
			return detailNeverPasses
		}
		return ""
	}
	return detailForbidden
}

func appendTryAgain(dst []byte, d *Decision) []byte {
	if d.Outcome == OutcomePenalized {
		dst = append(dst, detailPenalized...)
	} else {
		dst = append(dst, detailQuotaExceeded...)
	}
	seconds := retrySeconds(d)
	dst = strconv.AppendInt(dst, seconds, 10)
	if seconds == 1 {
		return append(dst, " second."...)
	}
	return append(dst, " seconds."...)
}
