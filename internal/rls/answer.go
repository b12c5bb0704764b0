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
)

// answer says what was decided. After a failure of the store there are no numbers to tell.
func (c *call) answer(d *core.Decision, descriptors int, failed bool) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: code(d.Refused()),
		Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, descriptors)}
	for i := range response.Statuses {
		if failed {
			response.Statuses[i] = &pb.RateLimitResponse_DescriptorStatus{Code: code(d.Refused())}
		} else {
			response.Statuses[i] = descriptorStatus(c.plan.Status(&c.descriptors[i]))
		}
	}
	response.ResponseHeadersToAdd = c.fields(d)
	if d.Refused() {
		said := *d
		said.Status = http.StatusTooManyRequests // Envoy's, whatever the rule says
		c.body = c.plan.AppendProblem(c.body[:0], &said)
		response.RawBody = append([]byte(nil), c.body...)
	}
	return response
}

func code(refused bool) pb.RateLimitResponse_Code {
	if refused {
		return pb.RateLimitResponse_OVER_LIMIT
	}
	return pb.RateLimitResponse_OK
}

func descriptorStatus(s core.DescriptorStatus) *pb.RateLimitResponse_DescriptorStatus {
	status := &pb.RateLimitResponse_DescriptorStatus{Code: code(s.Refused)}
	if s.Limit == nil {
		if s.Unlimited {
			status.LimitRemaining = math.MaxUint32
		}
		return status
	}
	unit, several := unitOf(s.Limit)
	status.CurrentLimit = &pb.RateLimitResponse_RateLimit{Name: s.Policy, RequestsPerUnit: bounded(s.Limit.Count()), Unit: unit}
	if several > 1 {
		status.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(several)
	}
	status.LimitRemaining = bounded(s.Remaining)
	// Envoy reads whole seconds: rounded up, so that nobody who waits for it comes too early.
	status.DurationUntilReset = &durationpb.Duration{Seconds: max(1, int64((s.Reset+core.Second-1)/core.Second))}
	return status
}

func bounded(n int64) uint32 { return uint32(min(n, math.MaxUint32)) }

// units are those of the protocol, the longest first. A month of 30 days is what envoyproxy/ratelimit counts by.
var units = []struct {
	span core.Micros
	unit pb.RateLimitResponse_RateLimit_Unit
}{
	{30 * core.Day, pb.RateLimitResponse_RateLimit_MONTH},
	{7 * core.Day, pb.RateLimitResponse_RateLimit_WEEK},
	{core.Day, pb.RateLimitResponse_RateLimit_DAY},
	{core.Hour, pb.RateLimitResponse_RateLimit_HOUR},
	{core.Minute, pb.RateLimitResponse_RateLimit_MINUTE},
	{core.Second, pb.RateLimitResponse_RateLimit_SECOND},
}

// unitOf returns a limit's window in the units of the protocol; UNKNOWN for one that is no whole seconds.
func unitOf(l *core.Limit) (unit pb.RateLimitResponse_RateLimit_Unit, several uint32) {
	if l.Calendar() == core.CalendarYear {
		return pb.RateLimitResponse_RateLimit_YEAR, 1
	}
	for _, u := range units {
		if l.Window()%u.span == 0 {
			return u.unit, uint32(l.Window() / u.span)
		}
	}
	return pb.RateLimitResponse_RateLimit_UNKNOWN, 1
}

// spanOf returns a unit's span; 0 for a year, and for what is no unit. What Envoy asks for has the numbers of what it is
// answered, but no name for a week.
func spanOf(asked envoytype.RateLimitUnit) core.Micros {
	for _, u := range units {
		if u.unit == pb.RateLimitResponse_RateLimit_Unit(asked) {
			return u.span
		}
	}
	return 0
}

// fields are the header fields of the response. Their names are in lower case, as HTTP/2 has them.
func (c *call) fields(d *core.Decision) []*envoycore.HeaderValue {
	f := c.plan.Headers(d)
	list := make([]*envoycore.HeaderValue, 0, 8)
	add := func(name, value string) {
		if value != "" {
			list = append(list, &envoycore.HeaderValue{Key: name, Value: value})
		}
	}
	for i, value := range f.Telling() {
		add(core.ToldNames[i], value)
	}
	add("www-authenticate", f.Authenticate)
	if !d.Refused() {
		return list
	}
	add("content-type", d.ContentType())
	if d.Response != nil {
		for _, field := range d.Response.Headers {
			add(strings.ToLower(field.Name), field.Value)
		}
	}
	return list
}

// unlimited is the answer where no limit is for the request.
func unlimited(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
	for range request.GetDescriptors() {
		response.Statuses = append(response.Statuses, &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK})
	}
	return response
}

// forbidden is the answer where Envoy sends limits of nothing at all. Nothing is charged then.
func forbidden(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT}
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

// readHits takes in what the descriptor says of its own hits.
func readHits(d *core.Descriptor, source *ratelimit.RateLimitDescriptor) {
	if own := source.GetHitsAddend(); own != nil {
		d.Hits = int64(min(own.GetValue(), math.MaxInt64))
		d.Reported = true
	}
	d.Negative = source.GetIsNegativeHits()
}
