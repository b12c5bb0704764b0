// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"fmt"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // registers the codec of everything else
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// Codec returns the codec that a server of this service must be forced to use, by [google.golang.org/grpc.ForceServerCodecV2].
// Values of descriptors are what clients of Envoy write, and those need not be UTF-8. The codec that gRPC has refuses such a
// request before the service sees it, and Envoy lets the client's request pass then. This one takes strings as the bytes they
// are. Messages of other services are read and written as always.
func (s *Service) Codec() encoding.CodecV2 {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), invalid: s.options.Observer.Invalid}
}

// codec is safe for concurrent use.
type codec struct {
	encoding.CodecV2
	invalid func(error) // told of requests that are no message at all
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

// Marshal implements [encoding.CodecV2]. Envoy refuses a response that holds a string which is not UTF-8, as it refuses an
// error: so none goes out, whatever a policy or a request has brought into it.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	response, ok := v.(*pb.RateLimitResponse)
	if err == nil || !ok {
		return data, err
	}
	response = protobuf.CloneOf(response) // the service may still look at its own
	for _, h := range append(response.ResponseHeadersToAdd, response.RequestHeadersToAdd...) {
		h.Key, h.Value = valid(h.Key), valid(h.Value)
	}
	for _, status := range response.Statuses {
		if limit := status.GetCurrentLimit(); limit != nil {
			limit.Name = valid(limit.Name)
		}
	}
	return c.CodecV2.Marshal(response)
}

// valid puts U+FFFD in place of what is not UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
