// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/core/slim"
)

// deny answers a denied request, with all header fields. The filter's own responses pass through
// ResponseHeaders too, which leaves them unchanged.
func (s *Stream) deny(d *core.Decision) {
	a := s.asking
	var headers [][2]string
	if challenge := response.Challenge(d); challenge != "" {
		headers = append(headers, [2]string{"www-authenticate", challenge})
	}
	if d.Response != nil {
		for _, f := range d.Response.Headers {
			headers = setField(headers, slim.LowerASCII(f.Name), f.Value)
		}
	}
	r := Response{Status: uint32(d.Status), GRPCStatus: -1}
	switch kind := grpcType(a.attrs.contentType); kind {
	case "":
		headers = setField(headers, "content-type", response.ContentType(d))
		r.Body = response.AppendProblem(nil, &a.plan, d)
	case grpcNative:
		// Envoy makes a trailers-only response, with the body as the message.
		code, _ := response.GRPCStatus(d)
		r.GRPCStatus, r.Body = int32(code), []byte(response.Detail(d))
	default:
		code, message := response.GRPCStatus(d)
		r.Status = 200
		s.grpcType = kind // Envoy removes it if there is no body
		headers = setField(headers, "grpc-status", strconv.Itoa(code))
		headers = setField(headers, "grpc-message", message)
	}
	for _, f := range s.merged(headers) {
		headers = setField(headers, f[0], f[1])
	}
	r.Headers = headers
	s.answer(r)
}

// setField sets a field in a list of headers, replacing one of that name.
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

// grpcNative marks a request that Envoy itself treats as gRPC.
const grpcNative = "native"

// grpcType returns the content type of a response to a gRPC request. It returns "" for other
// requests, and grpcNative if Envoy itself converts the response to gRPC.
func grpcType(asked string) string {
	if asked == "application/grpc" || strings.HasPrefix(asked, "application/grpc+") {
		return grpcNative
	}
	return response.GRPCContentType(asked)
}

// merged returns the rate limit fields to set in a response. They combine the filter's own fields
// with those that the upstream has set.
func (s *Stream) merged(headers [][2]string) (fields [][2]string) {
	if s.fields.Empty() {
		return nil
	}
	own := s.fields
	own.Merge(s.remaining, false, func(f response.Field) []string { return lines(headers, response.FieldNames[f]) })
	fields = make([][2]string, 0, len(own))
	for i, value := range own {
		if value != "" {
			fields = append(fields, [2]string{response.FieldNames[i], value})
		}
	}
	return fields
}

// lines returns the values of a header, nil if it is absent.
//
//go:noinline
func lines(headers [][2]string, name string) (values []string) {
	for i := range headers {
		if headers[i][0] == name {
			values = append(values, headers[i][1])
		}
	}
	return values
}
