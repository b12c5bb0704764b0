// SPDX-License-Identifier: Apache-2.0

package front

import (
	"strconv"

	"github.com/penstock/penstock/core/response"
)

// Response is a response that is sent instead of the upstream's.
type Response struct {
	Status  uint32
	Headers [][2]string
	Body    []byte
	Ends    bool // Headers, which contain the status, are the whole response and are sent unchanged
}

// grpcKind is the content type of the response to a gRPC request whose content type has no subtype.
const grpcKind = "application/grpc"

// responseTo returns the response to a request with the given content type. For gRPC, the response
// is a single block of headers that contains the gRPC status.
func responseTo(contentType string, r response.Response, message string) Response {
	kind := response.GRPCType(contentType)
	if kind == "" {
		return Response{Status: r.Status, Headers: r.Headers, Body: r.Body}
	}
	if kind == response.GRPCNative {
		kind = grpcKind
	}
	headers := [][2]string{{":status", "200"}, {"content-type", kind}}
	for _, h := range r.Headers {
		if h[0] != "content-type" {
			headers = append(headers, h)
		}
	}
	if r.GRPCStatus >= 0 {
		headers = append(headers, [2]string{"grpc-status", strconv.Itoa(int(r.GRPCStatus))}, [2]string{"grpc-message", message})
	}
	return Response{Status: 200, Headers: headers, Ends: true}
}

// Merge combines fields about limits with the same fields of a response: see
// [response.Fields.Merge].
func Merge(own *response.Fields, remaining int64, headers [][2]string) {
	own.Merge(remaining, false, func(f response.Field) []string { return response.Lines(headers, response.FieldNames[f]) })
}

// Unguarded returns the response to a request that on_error denies without a plan.
func Unguarded() *Response {
	r := response.Unguarded()
	return &Response{Status: r.Status, Headers: r.Headers, Body: r.Body}
}
