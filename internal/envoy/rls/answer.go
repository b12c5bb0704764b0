// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"math"
	"net/http"
	"strings"

	envoycore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
)

// call.answer builds the response to a decision. After a failure of the store there are no
// numbers to report.
func (c *call) answer(d *core.Decision, descriptors int, failed bool) *pb.RateLimitResponse {
	reply := &pb.RateLimitResponse{OverallCode: code(d.Denied()),
		Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, descriptors)}
	for i := range reply.Statuses {
		if failed {
			reply.Statuses[i] = &pb.RateLimitResponse_DescriptorStatus{Code: code(d.Denied())}
		} else {
			reply.Statuses[i] = descriptorStatus(c.plan.Status(&c.descriptors[i]))
		}
	}
	reply.ResponseHeadersToAdd = c.fields(d)
	if d.Denied() {
		said := *d
		// Envoy always answers 429, whatever status the rule sets
		said.Status = http.StatusTooManyRequests
		c.body = response.AppendProblem(c.body[:0], &c.plan, &said)
		reply.RawBody = append([]byte(nil), c.body...)
	}
	return reply
}

func code(denied bool) pb.RateLimitResponse_Code {
	if denied {
		return pb.RateLimitResponse_OVER_LIMIT
	}
	return pb.RateLimitResponse_OK
}

func descriptorStatus(s core.DescriptorStatus) *pb.RateLimitResponse_DescriptorStatus {
	status := &pb.RateLimitResponse_DescriptorStatus{Code: code(s.Denied)}
	if s.Limit == nil {
		if s.Unlimited {
			status.LimitRemaining = math.MaxUint32
		}
		return status
	}
	unit, several := unitOf(s.Limit)
	status.CurrentLimit = &pb.RateLimitResponse_RateLimit{Name: s.Policy, RequestsPerUnit: clampUint32(s.Limit.Count()), Unit: unit}
	if several > 1 {
		status.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(several)
	}
	status.LimitRemaining = clampUint32(s.Remaining)
	// Envoy reads whole seconds. The times are rounded up, so that clients do not return too early.
	status.DurationUntilReset = &durationpb.Duration{Seconds: max(1, int64((s.Reset+counter.Second-1)/counter.Second))}
	return status
}

func clampUint32(n int64) uint32 { return uint32(min(n, math.MaxUint32)) }

// units lists the protocol's units, the longest first. A month has 30 days, as in
// envoyproxy/ratelimit.
var units = []struct {
	span counter.Micros
	unit pb.RateLimitResponse_RateLimit_Unit
}{
	{30 * counter.Day, pb.RateLimitResponse_RateLimit_MONTH},
	{7 * counter.Day, pb.RateLimitResponse_RateLimit_WEEK},
	{counter.Day, pb.RateLimitResponse_RateLimit_DAY},
	{counter.Hour, pb.RateLimitResponse_RateLimit_HOUR},
	{counter.Minute, pb.RateLimitResponse_RateLimit_MINUTE},
	{counter.Second, pb.RateLimitResponse_RateLimit_SECOND},
}

// unitOf returns a limit's window in the protocol's units, or UNKNOWN if the window is not in whole
// seconds.
func unitOf(l *counter.Limit) (unit pb.RateLimitResponse_RateLimit_Unit, several uint32) {
	if l.Calendar() == counter.CalendarYear {
		return pb.RateLimitResponse_RateLimit_YEAR, 1
	}
	for _, u := range units {
		if l.Window()%u.span == 0 {
			return u.unit, uint32(l.Window() / u.span)
		}
	}
	return pb.RateLimitResponse_RateLimit_UNKNOWN, 1
}

// spanOf returns the span of a unit, or 0 for a year and for unknown units. The units of a request
// have the same numbers as those of a response, but lack a name for a week.
func spanOf(asked envoytype.RateLimitUnit) counter.Micros {
	for _, u := range units {
		if u.unit == pb.RateLimitResponse_RateLimit_Unit(asked) {
			return u.span
		}
	}
	return 0
}

// call.fields returns the header fields of the response. The fields' names are in lower case,
// as HTTP/2 requires.
func (c *call) fields(d *core.Decision) []*envoycore.HeaderValue {
	list := make([]*envoycore.HeaderValue, 0, 8)
	add := func(name, value string) {
		if value != "" {
			list = append(list, &envoycore.HeaderValue{Key: name, Value: value})
		}
	}
	for i, value := range c.writer.Headers(&c.plan, d) {
		add(response.FieldNames[i], value)
	}
	add("www-authenticate", response.Challenge(d))
	if !d.Denied() {
		return list
	}
	list = append(list, uncached())
	add("content-type", response.ContentType(d))
	if d.Response != nil {
		for _, field := range d.Response.Headers {
			add(strings.ToLower(field.Name), field.Value)
		}
	}
	return list
}

// uncached returns [response.Uncached] as a field. Envoy answers a gRPC request with the status
// 200, which a cache could store.
func uncached() *envoycore.HeaderValue {
	return &envoycore.HeaderValue{Key: response.Uncached[0], Value: response.Uncached[1]}
}

// unlimited returns the answer to a request without a limit.
func unlimited(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
	for range request.GetDescriptors() {
		response.Statuses = append(response.Statuses, &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK})
	}
	return response
}

// unservedBody is [response.InvalidTarget] with the status that Envoy sends.
const unservedBody = `{"type":"about:blank","title":"Too Many Requests","status":429,` +
	`"detail":"The target or the host is of a form that is not served."}`

// rejectAmbiguous returns the answer to a request with a path or a host that not all servers read
// alike. The other fronts answer such a request with 400. The answer here is not an error, because
// after an error Envoy would admit the request.
func rejectAmbiguous(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	reply := overLimit(request)
	reply.ResponseHeadersToAdd = append(reply.ResponseHeadersToAdd, &envoycore.HeaderValue{Key: "content-type", Value: "application/problem+json"})
	reply.RawBody = []byte(unservedBody)
	return reply
}

// forbidden returns the answer to a request for which Envoy sends a limit of 0. Nothing is charged.
func forbidden(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT,
		ResponseHeadersToAdd: []*envoycore.HeaderValue{uncached()}}
	for _, d := range request.GetDescriptors() {
		status := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
		if limit := d.GetLimit(); limit != nil && limit.GetRequestsPerUnit() == 0 {
			status.Code = pb.RateLimitResponse_OVER_LIMIT
			status.CurrentLimit = &pb.RateLimitResponse_RateLimit{Name: overrideRule, UnitMultiplier: limit.GetUnitMultiplier(),
				Unit: pb.RateLimitResponse_RateLimit_Unit(limit.GetUnit())}
		}
		response.Statuses = append(response.Statuses, status)
	}
	return response
}

// readHits sets the descriptor's own hits. The argument named past says whether they have already
// happened.
func readHits(d *core.Descriptor, source *ratelimit.RateLimitDescriptor, past core.Past) {
	if own := source.GetHitsAddend(); own != nil {
		d.Hits, d.Past = int64(min(own.GetValue(), math.MaxInt64)), past
	}
	d.Negative = source.GetIsNegativeHits()
}
