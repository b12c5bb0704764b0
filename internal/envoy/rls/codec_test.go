// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"bytes"
	"fmt"
	"testing"

	envoycore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/penstock/penstock/internal/test/eventually"
)

// encodedMessage is an encoded message.
type encodedMessage []byte

// asWritten is the codec of a client whose messages are already encoded.
type asWritten struct{ encoding.CodecV2 }

func (c asWritten) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(encodedMessage); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// sendBytes sends an encoded request and returns the response.
func (s *served) sendBytes(request []byte) (*pb.RateLimitResponse, error) {
	response := new(pb.RateLimitResponse)
	err := s.conn.Invoke(eventually.Context(s), pb.RateLimitService_ShouldRateLimit_FullMethodName, encodedMessage(request), response,
		grpc.ForceCodecV2(asWritten{encoding.GetCodecV2(proto.Name)}))
	return response, err
}

// encoded encodes a request for descriptors with one entry each, from alternating keys and values
// of any bytes.
func encoded(domain string, pairs ...string) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), domain)
	for i := 0; i < len(pairs); i += 2 {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), pairs[i])
		entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), pairs[i+1])
		d := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), d)
	}
	return b
}

// TestBytesAreDecided: values that are not UTF-8 are decided like other values, and different bytes
// are different values.
func TestBytesAreDecided(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [
		{name: path, match: {path: /all*}, per: [], limit: 2/1h fixed_window},
		{name: agent, match: {attr: {user-agent: []}}, per: ["attr:user-agent"], limit: 2/1h fixed_window},
		{name: key, match: {attr: {x-api-key: []}}, per: ["attr:x-api-key"], limit: 2/1h fixed_window}]}`), nil)
	asked := 0
	for _, pair := range [][]string{{"path", "/all?\xff"}, {"user-agent", "\xff"}, {"user-agent", "\xfe"}, {"user-agent", "\ufffd"},
		{"x-api-key", "a\xc3\x28"}, {"x-api-key", "a\xed\xa0\x80"}, {"x-api-key", "a"}} {
		for i := range 4 {
			response, err := s.sendBytes(encoded("shop", pair...))
			if err != nil {
				t.Fatalf("%q: %v", pair, err)
			}
			if got := response.OverallCode == pb.RateLimitResponse_OK; got != (i < 2) {
				t.Errorf("%q, request %d: %v", pair, i+1, response)
			}
			asked++
		}
	}
	if s.decided != asked || s.wrong != 0 {
		t.Errorf("of %d requests %d are counted as decided, and %d as wrong", asked, s.decided, s.wrong)
	}
	if response, err := s.sendBytes(encoded("sh\xff", "a", "b")); err != nil || response.OverallCode != pb.RateLimitResponse_OK || s.unknown != 1 {
		t.Errorf("a domain that is not UTF-8: %v, %v, %d are counted as unknown", response, err, s.unknown)
	}
}

// TestMalformedMessagesAreCounted: malformed messages are counted.
func TestMalformedMessagesAreCounted(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: a, limit: 2/1h}]}`), nil)
	whole := encoded("shop", "a", "b")
	for i, data := range [][]byte{whole[:len(whole)-1], {0xff}, {0x0b}, {0x0c}, {0x07}, {0x02, 0x00}, append(whole, 0x12, 0x02, 0x0a, 0x7f)} {
		if _, err := s.sendBytes(data); status.Code(err) != codes.Internal {
			t.Errorf("%x: %v", data, err)
		}
		if s.wrong != i+1 {
			t.Errorf("%x: %d are counted as wrong", data, s.wrong)
		}
	}
}

// TestTooManyAreNotRead: a request of 4 MiB can have a million descriptors. Only as many are kept
// as are needed to reject the request.
func TestTooManyAreNotRead(t *testing.T) {
	request := new(pb.RateLimitRequest)
	data := append(encoded("shop"), bytes.Repeat([]byte{0x12, 0x00}, 1<<20)...)
	data = append(data, 0x12, 0x80, 0x20)
	data = append(data, bytes.Repeat([]byte{0x0a, 0x00}, 2048)...)
	if err := readRequest(data, request); err != nil || len(request.Descriptors) != DescriptorsMax+1 || validate(request) == nil {
		t.Errorf("%d descriptors, %v", len(request.Descriptors), err)
	}
	one := append(protowire.AppendTag(nil, 2, protowire.BytesType), 0x80, 0x20)
	request = new(pb.RateLimitRequest)
	if err := readRequest(append(one, data[len(data)-4096:]...), request); err != nil || len(request.Descriptors[0].Entries) != EntriesMax+1 {
		t.Errorf("%v, %v", request, err)
	}
}

// TestNoResponseIsLost: invalid UTF-8 in a response is replaced, because Envoy would reject the
// response.
func TestNoResponseIsLost(t *testing.T) {
	c := New(Options{}).Codec()
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT, RawBody: []byte("\xff"),
		ResponseHeadersToAdd: []*envoycore.HeaderValue{{Key: "x\xff", Value: "a\xffb"}},
		Statuses:             []*pb.RateLimitResponse_DescriptorStatus{{CurrentLimit: &pb.RateLimitResponse_RateLimit{Name: "\xfe"}}, {}}}
	data, err := c.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	back := new(pb.RateLimitResponse)
	if err := protobuf.Unmarshal(data.Materialize(), back); err != nil {
		t.Fatal(err)
	}
	h, name := back.ResponseHeadersToAdd[0], back.Statuses[0].CurrentLimit.Name
	if h.Key != "x\ufffd" || h.Value != "a\ufffdb" || name != "\ufffd" || string(back.RawBody) != "\xff" || response.ResponseHeadersToAdd[0].Value != "a\xffb" {
		t.Errorf("%v, and the service's own is %v", back, response)
	}
}

// inBytes returns the descriptor of the request message with bytes in place of strings.
func inBytes(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	files := new(protoregistry.Files)
	var add func(protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if _, err := files.FindFileByPath(file.Path()); err == nil {
			return
		}
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		text := protodesc.ToFileDescriptorProto(file)
		if file.Path() == "google/protobuf/descriptor.proto" {
			if err := files.RegisterFile(file); err != nil {
				t.Fatal(err)
			}
			return
		}
		for _, m := range text.MessageType {
			acceptBytes(m)
		}
		changed, err := protodesc.NewFile(text, files)
		if err != nil {
			t.Fatal(err)
		}
		if err := files.RegisterFile(changed); err != nil {
			t.Fatal(err)
		}
	}
	add(pb.File_envoy_service_ratelimit_v3_rls_proto)
	found, err := files.FindDescriptorByName(new(pb.RateLimitRequest).ProtoReflect().Descriptor().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return found.(protoreflect.MessageDescriptor)
}

func acceptBytes(m *descriptorpb.DescriptorProto) {
	if m.GetOptions().GetMapEntry() {
		return
	}
	for _, f := range m.Field {
		if f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_STRING {
			f.Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
		}
	}
	for _, inner := range m.NestedType {
		acceptBytes(inner)
	}
}

// firstDifference compares two messages: one that the protobuf library has decoded, and one of our
// codec. It returns the name of the first field that differs. If the messages are equal, it returns
// "".
func firstDifference(theirs, ours protoreflect.Message) string {
	fields := ours.Descriptor().Fields()
	for i := range fields.Len() {
		our, their := fields.Get(i), theirs.Descriptor().Fields().ByNumber(fields.Get(i).Number())
		a, b := theirs.Get(their), ours.Get(our)
		where := string(our.FullName())
		switch {
		case our.IsList():
			if a.List().Len() != b.List().Len() {
				return where
			}
			for j := range a.List().Len() {
				if at := firstDifference(a.List().Get(j).Message(), b.List().Get(j).Message()); at != "" {
					return at
				}
			}
		case our.Kind() == protoreflect.MessageKind:
			if theirs.Has(their) != ours.Has(our) {
				return where
			}
			if at := firstDifference(a.Message(), b.Message()); at != "" {
				return at
			}
		case our.Kind() == protoreflect.StringKind:
			if string(a.Bytes()) != b.String() {
				return where
			}
		case fmt.Sprint(a) != fmt.Sprint(b):
			return where
		}
	}
	return ""
}

// FuzzReadRequest: requests are read and rejected as the library would do if strings were bytes.
func FuzzReadRequest(f *testing.F) {
	form := inBytes(f)
	for _, seed := range []*pb.RateLimitRequest{
		{Domain: "shop", HitsAddend: 7, Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("a", "1", "", "é"), descriptor(),
			hits(descriptor("b", "2"), 1<<63, true), hits(limitedDescriptor(descriptor("c", "3"), 9, 6, 2), 0, false)}},
	} {
		data, err := protobuf.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(append(data, data...))
		f.Add(data[:len(data)-3])
	}
	f.Add(encoded("sh\xff", "a\xc3", "/all?\xff", "b", "\xed\xa0\x80"))
	// These seeds are a descriptor's limit that occurs twice and is merged, numbers too long for
	// their type, a skipped group, known fields with a wrong wire type, and an entry with an
	// unknown field.
	f.Add([]byte{0x12, 0x0a, 0x12, 0x02, 0x08, 0x05, 0x12, 0x04, 0x10, 0x03, 0x1a, 0x00})
	f.Add([]byte{0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x12, 0x02, 0x20, 0x02})
	f.Add([]byte{0x23, 0x08, 0x01, 0x24, 0x08, 0x01, 0x1a, 0x01, 0x00, 0x0d, 1, 2, 3, 4, 0x11, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{0x12, 0x05, 0x0a, 0x03, 0x52, 0x01, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := new(pb.RateLimitRequest), dynamicpb.NewMessage(form)
		err, denied := readRequest(data, ours), protobuf.Unmarshal(data, theirs)
		if validate(ours) != nil && err == nil && denied != nil {
			return // requests beyond the bounds are not compared
		}
		if (err == nil) != (denied == nil) {
			t.Fatalf("%x: %v, and the library says %v", data, err, denied)
		}
		if err != nil || len(ours.Descriptors) > DescriptorsMax || validate(ours) != nil && len(ours.Descriptors) > 0 && ours.Domain != "" {
			return
		}
		if at := firstDifference(theirs.ProtoReflect(), ours.ProtoReflect()); at != "" {
			t.Errorf("%x: %s differs: %v, and the library reads %v", data, at, ours, theirs)
		}
	})
}
