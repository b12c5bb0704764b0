// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"fmt"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // this import registers the default codec
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// Codec returns the codec that a server of this service must use, by
// [google.golang.org/grpc.ForceServerCodecV2]. Clients of Envoy control the values of descriptors,
// which need not be valid UTF-8. gRPC's own codec rejects a request with invalid UTF-8 before the
// service receives it, and Envoy then admits the client's request. This codec accepts any bytes in
// strings. Messages of other services are unchanged.
func (s *Service) Codec() encoding.CodecV2 {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), invalid: s.options.Observer.Invalid}
}

// codec is safe for concurrent use.
type codec struct {
	encoding.CodecV2
	invalid func(error) // called for requests that are not valid messages
}

// Unmarshal implements [encoding.CodecV2].
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	request, ok := v.(*pb.RateLimitRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	if err := readRequest(buffer.ReadOnlyData(), request); err != nil {
		c.invalid(err)
		return fmt.Errorf("the request cannot be read: %w", err)
	}
	return nil
}

// Marshal implements [encoding.CodecV2]. Envoy treats a response with a string that is not UTF-8 as
// an error. So Marshal replaces invalid bytes, whether they come from the policy or from the
// request.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	response, ok := v.(*pb.RateLimitResponse)
	if err == nil || !ok {
		return data, err
	}
	response = protobuf.CloneOf(response) // the service might still read the original
	for _, h := range append(response.ResponseHeadersToAdd, response.RequestHeadersToAdd...) {
		h.Key, h.Value = replaceInvalid(h.Key), replaceInvalid(h.Value)
	}
	for _, status := range response.Statuses {
		if limit := status.GetCurrentLimit(); limit != nil {
			limit.Name = replaceInvalid(limit.Name)
		}
	}
	return c.CodecV2.Marshal(response)
}

// replaceInvalid replaces invalid UTF-8 with U+FFFD.
func replaceInvalid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
