// SPDX-License-Identifier: Apache-2.0

package rls

import (
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The functions below read the messages of a request from their wire format. The functions differ
// from the protobuf library in two ways: a string may have any bytes, and nothing is allocated
// beyond the bounds of a request. Otherwise they behave in the same way. If a field occurs more
// than once, the last value is kept, but submessages are merged. Unknown fields, and fields with
// the wrong wire type, are skipped.

// readRequest reads a message into an empty request. readRequest keeps at most one descriptor more
// than [DescriptorsMax] and one entry more than [EntriesMax], enough for the request to be
// rejected.
func readRequest(data []byte, r *pb.RateLimitRequest) error {
	return eachField(data, func(n protowire.Number, f field) error {
		switch {
		case n == 1 && f.isBytes():
			r.Domain = string(f.bytes)
		case n == 2 && f.isBytes():
			if len(r.Descriptors) > DescriptorsMax {
				return nil
			}
			d := new(ratelimit.RateLimitDescriptor)
			r.Descriptors = append(r.Descriptors, d)
			return readDescriptor(f.bytes, d)
		case n == 3 && f.isVarint():
			r.HitsAddend = uint32(f.varint)
		}
		return nil
	})
}

func readDescriptor(data []byte, d *ratelimit.RateLimitDescriptor) error {
	return eachField(data, func(n protowire.Number, f field) error {
		switch {
		case n == 1 && f.isBytes():
			if len(d.Entries) > EntriesMax {
				return nil
			}
			e := new(ratelimit.RateLimitDescriptor_Entry)
			d.Entries = append(d.Entries, e)
			return readEntry(f.bytes, e)
		case n == 2 && f.isBytes():
			if d.Limit == nil {
				d.Limit = new(ratelimit.RateLimitDescriptor_RateLimitOverride)
			}
			return readOverride(f.bytes, d.Limit)
		case n == 3 && f.isBytes():
			if d.HitsAddend == nil {
				d.HitsAddend = new(wrapperspb.UInt64Value)
			}
			return readNumber(f.bytes, func(v uint64) { d.HitsAddend.Value = v })
		case n == 4 && f.isVarint():
			d.IsNegativeHits = protowire.DecodeBool(f.varint)
		}
		return nil
	})
}

func readEntry(data []byte, e *ratelimit.RateLimitDescriptor_Entry) error {
	return eachField(data, func(n protowire.Number, f field) error {
		switch {
		case n == 1 && f.isBytes():
			e.Key = string(f.bytes)
		case n == 2 && f.isBytes():
			e.Value = string(f.bytes)
		}
		return nil
	})
}

func readOverride(data []byte, o *ratelimit.RateLimitDescriptor_RateLimitOverride) error {
	return eachField(data, func(n protowire.Number, f field) error {
		switch {
		case n == 1 && f.isVarint():
			o.RequestsPerUnit = uint32(f.varint)
		case n == 2 && f.isVarint():
			o.Unit = envoytype.RateLimitUnit(f.varint)
		case n == 3 && f.isBytes():
			if o.UnitMultiplier == nil {
				o.UnitMultiplier = new(wrapperspb.UInt32Value)
			}
			return readNumber(f.bytes, func(v uint64) { o.UnitMultiplier.Value = uint32(v) })
		}
		return nil
	})
}

// readNumber reads a number that is wrapped in a message, and calls set(...) if the number is
// present.
func readNumber(data []byte, set func(uint64)) error {
	return eachField(data, func(n protowire.Number, f field) error {
		if n == 1 && f.isVarint() {
			set(f.varint)
		}
		return nil
	})
}

// field is the decoded value of a protobuf field. The messages of this protocol use two wire types.
type field struct {
	kind   protowire.Type
	varint uint64
	bytes  []byte
}

func (f field) isVarint() bool { return f.kind == protowire.VarintType }
func (f field) isBytes() bool  { return f.kind == protowire.BytesType }

// eachField calls read(...) for each field of a message. The bytes of a field are part of data.
func eachField(data []byte, read func(protowire.Number, field) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		f := field{kind: kind}
		switch kind {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := read(number, f); err != nil {
			return err
		}
	}
	return nil
}
