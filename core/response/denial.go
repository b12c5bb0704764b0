// SPDX-License-Identifier: Apache-2.0

package response

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/slim"
)

// Response is a response that a front in Envoy sends to a client in place of the upstream's.
type Response struct {
	Status     uint32
	Headers    [][2]string
	Body       []byte
	GRPCStatus int32 // the status for gRPC clients; -1 lets Envoy choose it
}

// Uncached is a field of every response to a denied request. The response to a gRPC request has the
// status 200, and any client can send a GET as gRPC. Without the field, a cache would serve that
// response to other clients.
var Uncached = [2]string{"cache-control", "no-store"}

// GRPCNative marks a request that Envoy itself treats as gRPC.
const GRPCNative = "native"

// GRPCType returns the content type of a response to a gRPC request. GRPCType returns "" for other
// requests, and [GRPCNative] if Envoy itself converts the response to gRPC.
func GRPCType(asked string) string {
	if asked == "application/grpc" || strings.HasPrefix(asked, "application/grpc+") {
		return GRPCNative
	}
	return GRPCContentType(asked)
}

// Deny makes r the response to a denied request, with the given fields about its limits. The
// response shares the memory of the fields. Deny reuses the memory of Headers and Body. Envoy omits
// the content type of a response without a body. If the request is gRPC and Envoy does not convert
// the response, grpcType is the content type to add, otherwise "". The caller adds Uncached.
func (r *Response) Deny(plan *core.Plan, d *core.Decision, contentType string, own *Fields) (grpcType string) {
	headers := r.Headers[:0]
	if challenge := Challenge(d); challenge != "" {
		headers = append(headers, [2]string{"www-authenticate", challenge})
	}
	if d.Response != nil {
		for _, f := range d.Response.Headers {
			headers = setField(headers, slim.LowerASCII(f.Name), f.Value)
		}
	}
	*r = Response{Status: uint32(d.Status), GRPCStatus: -1, Body: r.Body[:0]}
	switch kind := GRPCType(contentType); kind {
	case "":
		headers = setField(headers, "content-type", ContentType(d))
		r.Body = AppendProblem(r.Body, plan, d)
	case GRPCNative:
		// Envoy makes a trailers-only response, with the body as the message.
		code, _ := GRPCStatus(d)
		r.GRPCStatus, r.Body = int32(code), append(r.Body, Detail(d)...)
	default:
		code, message := GRPCStatus(d)
		r.Status, grpcType = 200, kind
		headers = setField(headers, "grpc-status", strconv.Itoa(code))
		headers = setField(headers, "grpc-message", message)
	}
	all := *own
	all.Merge(d.Remaining, false, func(f Field) []string { return Lines(headers, FieldNames[f]) })
	for i, value := range all {
		if value != "" {
			headers = setField(headers, FieldNames[i], value)
		}
	}
	r.Headers = headers
	return grpcType
}

// setField sets a field in a list of headers, replacing a field of that name.
//
//go:noinline
func setField(headers [][2]string, name, value string) [][2]string {
	for i := range headers {
		if headers[i][0] == name {
			headers[i][1] = value
			return headers
		}
	}
	return append(headers, [2]string{name, value})
}

// Merge returns the fields about limits that must be set in a response, nil if there are none.
// The fields combine the front's own fields with those that the headers of the response have.
//
//go:noinline
func Merge(own *Fields, remaining int64, headers [][2]string) (fields [][2]string) {
	if own.Empty() {
		return nil
	}
	all := *own
	all.Merge(remaining, false, func(f Field) []string { return Lines(headers, FieldNames[f]) })
	fields = make([][2]string, 0, len(all))
	for i, value := range all {
		if value != "" {
			fields = append(fields, [2]string{FieldNames[i], value})
		}
	}
	return fields
}

// Unguarded returns the response to a request that on_error denies and for which there is no plan.
func Unguarded() Response {
	d := core.Decision{Outcome: core.OutcomeDegradedDenied, Status: 503}
	return Response{Status: 503, GRPCStatus: 14, Headers: [][2]string{Uncached, {"content-type", ContentType(&d)}},
		Body: AppendProblem(nil, new(core.Plan), &d)}
}

// BadTarget returns the response to a request whose path or host the upstream might read
// differently.
func BadTarget() Response {
	return Response{Status: 400, GRPCStatus: 3, Headers: [][2]string{Uncached, {"content-type", "application/problem+json"}},
		Body: []byte(InvalidTarget)}
}

// Lines returns the values of a header, nil if it is absent.
//
//go:noinline
func Lines(headers [][2]string, name string) (values []string) {
	for i := range headers {
		if headers[i][0] == name {
			values = append(values, headers[i][1])
		}
	}
	return values
}
