// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/core"
)

// refuse answers the request. All of its header fields are here: the filter's own answers pass ResponseHeaders too, which
// lets them alone.
func (s *Stream) refuse(d *core.Decision, challenge string) {
	a := s.asking
	var headers [][2]string
	if challenge != "" {
		headers = append(headers, [2]string{"www-authenticate", challenge})
	}
	if d.Response != nil {
		for _, f := range d.Response.Headers {
			headers = setField(headers, core.LowerASCII(f.Name), f.Value)
		}
	}
	r := Response{Status: uint32(d.Status), GRPCStatus: -1}
	switch kind := grpcType(a.attrs.contentType); kind {
	case "":
		headers = setField(headers, "content-type", d.ContentType())
		r.Body = a.plan.AppendProblem(nil, d)
	case grpcNative:
		// Envoy makes a response of trailers only, with the body as the message.
		code, _ := core.GRPCStatus(d)
		r.GRPCStatus, r.Body = int32(code), []byte(d.Detail())
	default:
		code, message := core.GRPCStatus(d)
		r.Status = 200
		s.grpcType = kind // Envoy takes it out where there is no body
		headers = setField(headers, "grpc-status", strconv.Itoa(code))
		headers = setField(headers, "grpc-message", message)
	}
	for _, f := range s.merged(headers) {
		headers = setField(headers, f[0], f[1])
	}
	r.Headers = headers
	s.answer(r)
}

// setField puts a field into a list of headers, in place of one with that name.
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

// grpcNative is a request that Envoy itself takes for one of gRPC.
const grpcNative = "native"

// grpcType is the content type of an answer to a gRPC request; "" for any other request, and grpcNative where Envoy
// answers in gRPC's form by itself.
func grpcType(asked string) string {
	if asked == "application/grpc" || strings.HasPrefix(asked, "application/grpc+") {
		return grpcNative
	}
	return core.GRPCContentType(asked)
}

// merged returns the fields that tell of limits, as they are to be set in a response that has these headers.
func (s *Stream) merged(headers [][2]string) (fields [][2]string) {
	if s.told == (core.Telling{}) {
		return nil
	}
	told := s.told
	told.Merge(s.remaining, false, func(f core.Told) []string { return lines(headers, core.ToldNames[f]) })
	fields = make([][2]string, 0, len(told))
	for i, value := range told {
		if value != "" {
			fields = append(fields, [2]string{core.ToldNames[i], value})
		}
	}
	return fields
}

// lines returns the lines of a header; nil if there is none.
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
