// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

const perAddress = `{name: shop, rules: [{name: api, limit: 2/1m fixed_window}]}`

// TestAnswer tests the full response to an allowed and to a denied request.
func TestAnswer(t *testing.T) {
	s := serve(t, rules(t, perAddress), nil)
	s.clock.Add(int64(500 * counter.Millisecond))
	got := s.checkAnswer(true, descriptor("remote_address", "192.0.2.7"))
	want := []*pb.RateLimitResponse_DescriptorStatus{{Code: pb.RateLimitResponse_OK, LimitRemaining: 1,
		CurrentLimit: &pb.RateLimitResponse_RateLimit{Name: "api", RequestsPerUnit: 2, Unit: pb.RateLimitResponse_RateLimit_MINUTE},
		// 59.5 seconds, rounded up: Envoy reads whole seconds, and clients must not return too
		// early.
		DurationUntilReset: &durationpb.Duration{Seconds: 60}}}
	if diff := cmp.Diff(want, got.Statuses, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "1700049660",
		"ratelimit": `"api";r=1;t=60`, "ratelimit-policy": `"api";q=2;w=60`}, fields(got)); diff != "" {
		t.Error(diff)
	}
	s.checkAnswer(true, descriptor("remote_address", "192.0.2.7"))
	got = s.checkAnswer(false, descriptor("remote_address", "192.0.2.7"))
	f := fields(got)
	if f["retry-after"] != "60" || f["content-type"] != "application/problem+json" || f["x-ratelimit-remaining"] != "0" {
		t.Errorf("%v", f)
	}
	if body := string(got.RawBody); !strings.Contains(body, `"status":429`) || !strings.Contains(body, `"violated-policies":["api"]`) {
		t.Errorf("%s", body)
	}
	if got.Statuses[0].Code != pb.RateLimitResponse_OVER_LIMIT || got.Statuses[0].LimitRemaining != 0 {
		t.Errorf("%v", got.Statuses[0])
	}
	s.checkAnswer(true, descriptor("remote_address", "192.0.2.8"))
	s.clock.Add(int64(counter.Minute))
	s.checkAnswer(true, descriptor("remote_address", "192.0.2.7"))
	if s.decided != 5 || s.outcomes["allowed"] != 4 || s.outcomes["denied"] != 1 {
		t.Errorf("observed %d: %v", s.decided, s.outcomes)
	}
}

// TestMapping tests how a policy sees the entries of a descriptor.
func TestMapping(t *testing.T) {
	for _, c := range []struct {
		match string // matches the first descriptor and not the second
		is    []string
		isNot []string
	}{
		{`path: /api/*`, []string{"path", "/api/x?q=1"}, []string{"path", "/other"}},
		{`path: /api/*`, []string{":path", "/api/x"}, []string{"generic_key", "/api/x"}},
		{`method: POST`, []string{"method", "POST"}, []string{":method", "GET"}},
		{`host: shop.example`, []string{":authority", "shop.example:80"}, []string{"host", "example"}},
		{`host: shop.example`, []string{"authority", "shop.example"}, []string{"x", "shop.example"}},
		{`ip: 192.0.2.0/24`, []string{"remote_address", "192.0.2.9"}, []string{"remote_address", "198.51.100.1"}},
		{`ip: 192.0.2.0/24`, []string{"remote_address", "::ffff:192.0.2.9"}, []string{"remote_address", "nonsense"}},
		{`header: {X-Plan: gold}`, []string{"x-plan", "gold"}, []string{"x-plan", "silver"}},
		{`attr: {generic_key: slow}`, []string{"generic_key", "slow"}, []string{"generic_key", "fast"}},
		{`attr: {generic_key: []}`, []string{"generic_key", ""}, []string{"key", "x"}},
		{`attr: {a#2: "2*"}`, []string{"a", "1", "b", "x", "a", "22"}, []string{"a", "22", "a", "1"}},
		{`attr: {a: "1"}`, []string{"a", "1", "a", "2"}, []string{"a", "2", "a", "1"}},
		{`attr: {envoy.descriptor: a/b}`, []string{"a", "1", "b", "2"}, []string{"b", "1", "a", "2"}},
		{`attr: {envoy.descriptor: a}`, []string{"a", "1"}, []string{"a", "1", "b", "2"}},
		{`attr: {envoy.descriptor: a%2Fb}`, []string{"a/b", "1"}, []string{"a", "1", "b", "2"}},
		{`attr: {envoy.domain: shop}`, []string{"x", "1"}, nil},
	} {
		s := serve(t, rules(t, `{name: shop, rules: [{name: r, match: {`+c.match+`}, per: [], limit: 1/1m}]}`), nil)
		s.checkAnswer(true, descriptor(c.is...))
		if got := s.ask(descriptor(c.is...)); got.OverallCode != pb.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%s does not match %v", c.match, c.is)
		}
		if c.isNot == nil {
			continue
		}
		if got := s.ask(descriptor(c.isNot...)); got.OverallCode != pb.RateLimitResponse_OK {
			t.Errorf("%s matches %v", c.match, c.isNot)
		}
	}
}

// TestListsAndIdentities: an entry of a descriptor may be a credential. The request is counted for
// the client that has the credential, and the lists exempt and block apply.
func TestListsAndIdentities(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, identify: [{header: {name: X-User, unverified: true}}, ip], exempt: {ip: [10.0.0.0/8]},
		block: {ip: [192.0.2.66]}, rules: [{name: r, limit: 1/1m}]}`), nil)
	s.checkAnswer(true, descriptor("x-user", "ann", "remote_address", "192.0.2.1"))
	s.checkAnswer(false, descriptor("x-user", "ann", "remote_address", "192.0.2.2"))
	s.checkAnswer(true, descriptor("remote_address", "192.0.2.2"))
	for range 3 {
		got := s.checkAnswer(true, descriptor("remote_address", "10.1.2.3"))
		if got.Statuses[0].LimitRemaining != math.MaxUint32 || got.Statuses[0].CurrentLimit != nil {
			t.Errorf("%v", got.Statuses[0])
		}
	}
	got := s.checkAnswer(false, descriptor("x-user", "bob"), descriptor("remote_address", "192.0.2.66"))
	if len(got.RawBody) == 0 || fields(got)["retry-after"] != "" {
		t.Errorf("%v", got)
	}
	s.checkAnswer(true, descriptor("x-user", "bob")) // bob was not charged
}

// TestAllOrNothing: if one descriptor is over its limit, the other descriptors of the request are
// not charged.
func TestAllOrNothing(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [
		{name: a, match: {attr: {a: []}}, per: [attr:a], limit: 1/1m},
		{name: b, match: {attr: {b: []}}, per: [attr:b], limit: 2/1m}]}`), nil)
	both := []*ratelimit.RateLimitDescriptor{descriptor("a", "1"), descriptor("b", "1"), descriptor("c", "1")}
	s.checkAnswer(true, both...)
	for range 3 {
		got := s.checkAnswer(false, both...)
		codes := [3]pb.RateLimitResponse_Code{}
		for i := range codes {
			codes[i] = got.Statuses[i].Code
		}
		if codes != [3]pb.RateLimitResponse_Code{pb.RateLimitResponse_OVER_LIMIT, pb.RateLimitResponse_OK, pb.RateLimitResponse_OK} {
			t.Errorf("%v", codes)
		}
		if got.Statuses[1].LimitRemaining != 1 {
			t.Errorf("%v", got.Statuses[1])
		}
	}
	s.checkAnswer(true, descriptor("b", "1"))
	s.checkAnswer(false, descriptor("b", "1"))
}

func hits(d *ratelimit.RateLimitDescriptor, n uint64, negative bool) *ratelimit.RateLimitDescriptor {
	d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), negative
	return d
}

// TestHitsAddend: a request's hits are charged entirely or not at all; a descriptor's own hits may
// be a report, because the calls are not marked.
func TestHitsAddend(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: r, per: [attr:k], missing: share, limit: 10/1m fixed_window, cost: 2}]}`), nil)
	left := func(key string, want uint32) {
		t.Helper()
		if got := s.ask(hits(descriptor("k", key), 0, true)).Statuses[0].LimitRemaining; got != want {
			t.Errorf("%s: %d left, want %d", key, got, want)
		}
	}
	global := func(n uint32, want pb.RateLimitResponse_Code) {
		t.Helper()
		got := s.send(&pb.RateLimitRequest{Domain: "shop", HitsAddend: n, Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("k", "g")}})
		if got.OverallCode != want {
			t.Errorf("%d hits: %v", n, got.OverallCode)
		}
	}
	global(0, pb.RateLimitResponse_OK) // the default, 1
	left("g", 8)
	global(3, pb.RateLimitResponse_OK)
	left("g", 2)
	global(2, pb.RateLimitResponse_OVER_LIMIT)
	global(math.MaxUint32, pb.RateLimitResponse_OVER_LIMIT)
	left("g", 2)
	global(1, pb.RateLimitResponse_OK)

	s.checkAnswer(true, hits(descriptor("k", "own"), 0, false)) // charges nothing
	left("own", 10)
	s.checkAnswer(true, hits(descriptor("k", "own"), 4, false))
	left("own", 2)
	s.checkAnswer(false, hits(descriptor("k", "own"), 3, false)) // recorded too, so 14 of 10 units are used
	left("own", 0)
	s.checkAnswer(false, hits(descriptor("k", "own"), 0, false))
	s.checkAnswer(true, hits(descriptor("k", "own"), 1, true))
	s.checkAnswer(false, hits(descriptor("k", "own"), 0, false))
	s.checkAnswer(true, hits(descriptor("k", "own"), 3, true))
	left("own", 4)
	s.checkAnswer(true, hits(descriptor("k", "own"), math.MaxUint64, true))
	left("own", 10)
	s.checkAnswer(false, hits(descriptor("k", "own"), math.MaxUint64, false))
	s.clock.Add(int64(counter.Minute))
	left("own", 10) // debt ends with its window
	s.checkAnswer(true, hits(descriptor("k", "own"), 5, true))
	left("own", 10) // an empty window is not refunded
}

func limitedDescriptor(d *ratelimit.RateLimitDescriptor, n uint32, unit envoytype.RateLimitUnit, several uint32) *ratelimit.RateLimitDescriptor {
	d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
	if several > 0 {
		d.Limit.UnitMultiplier = wrapperspb.UInt32(several)
	}
	return d
}

// TestOverride: a limit sent by Envoy replaces the rules and counts by the whole descriptor.
func TestOverride(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: r, per: [], limit: 1/1m}]}`), nil)
	own := func(value string) *ratelimit.RateLimitDescriptor {
		return limitedDescriptor(descriptor("a", value, "b", "1"), 3, envoytype.RateLimitUnit_SECOND, 90)
	}
	for range 3 {
		got := s.checkAnswer(true, own("1")).Statuses[0].CurrentLimit
		want := &pb.RateLimitResponse_RateLimit{Name: "envoy-override", RequestsPerUnit: 3,
			Unit: pb.RateLimitResponse_RateLimit_SECOND, UnitMultiplier: wrapperspb.UInt32(90)}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
	s.checkAnswer(false, own("1"))
	s.checkAnswer(true, own("2"))
	s.checkAnswer(true, limitedDescriptor(descriptor("a", "1"), 1, envoytype.RateLimitUnit_YEAR, 0))
	s.checkAnswer(false, limitedDescriptor(descriptor("a", "1"), 1, envoytype.RateLimitUnit_YEAR, 0))
	s.checkAnswer(false, descriptor("a", "0"), limitedDescriptor(descriptor("a", "2"), 0, envoytype.RateLimitUnit_DAY, 0))
	s.checkAnswer(true, descriptor("a", "0")) // the earlier request did not charge it
	for _, wrong := range []*ratelimit.RateLimitDescriptor{
		limitedDescriptor(descriptor("a", "1"), 1, envoytype.RateLimitUnit_UNKNOWN, 0),
		limitedDescriptor(descriptor("a", "1"), 1, envoytype.RateLimitUnit_YEAR, 2),
		limitedDescriptor(descriptor("a", "1"), 1, envoytype.RateLimitUnit_DAY, 32),
		limitedDescriptor(descriptor("a", "1"), 1, envoytype.RateLimitUnit_DAY, math.MaxUint32),
		{Limit: &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 1, UnitMultiplier: wrapperspb.UInt32(0)}},
		limitedDescriptor(descriptor("a", "1"), 1, 99, 0),
	} {
		_, err := s.RateLimitServiceClient.ShouldRateLimit(eventually.Context(t),
			&pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{wrong}})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", wrong.Limit, err)
		}
	}
	for i := range uint32(3 * overridesMax) {
		s.checkAnswer(true, limitedDescriptor(descriptor("many", "1"), 5000+i, envoytype.RateLimitUnit_HOUR, 0))
	}
	if n := len(s.overrides.known); n > overridesMax {
		t.Errorf("%d limits are remembered", n)
	}
}

// TestOverridesOfOneUnit: of several limits for one counter, the strictest applies, in any order.
func TestOverridesOfOneUnit(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: r, match: {attr: {k: none}}, limit: 9/1m}]}`), nil)
	for name, counts := range map[string][]uint32{"a": {4, 1}, "b": {1, 4}, "c": {9, 1, 4}} {
		for i, want := range []bool{true, false, false} {
			var ds []*ratelimit.RateLimitDescriptor
			for _, count := range counts {
				ds = append(ds, limitedDescriptor(descriptor("k", name), count, envoytype.RateLimitUnit_MINUTE, 0))
			}
			got := s.checkAnswer(want, ds...)
			if l := got.Statuses[0]; l.CurrentLimit.RequestsPerUnit != 1 || l.LimitRemaining != 0 || (l.Code == pb.RateLimitResponse_OK) != want {
				t.Errorf("%v: request %d: %v", counts, i, l)
			}
		}
	}
	s.checkAnswer(true, limitedDescriptor(descriptor("k", "d"), 4, envoytype.RateLimitUnit_MINUTE, 0), limitedDescriptor(descriptor("k", "d"), 1, envoytype.RateLimitUnit_HOUR, 0))
	s.checkAnswer(false, limitedDescriptor(descriptor("k", "d"), 4, envoytype.RateLimitUnit_MINUTE, 0), limitedDescriptor(descriptor("k", "d"), 1, envoytype.RateLimitUnit_HOUR, 0))
}

// TestOverrideOfAnyDomain: a limit sent by Envoy applies in a domain without rules; other
// descriptors there are not limited.
func TestOverrideOfAnyDomain(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: r, per: [], limit: 1/1m}]}`), nil)
	ask := func(domain string, want pb.RateLimitResponse_Code, ds ...*ratelimit.RateLimitDescriptor) {
		t.Helper()
		got := s.send(&pb.RateLimitRequest{Domain: domain, Descriptors: ds})
		if got.OverallCode != want {
			t.Errorf("%s: %v", domain, got)
		}
	}
	own := func(n uint32) *ratelimit.RateLimitDescriptor {
		return limitedDescriptor(descriptor("k", "v"), n, envoytype.RateLimitUnit_MINUTE, 0)
	}
	for _, domain := range []string{"shop", "other", "third"} {
		ask(domain, pb.RateLimitResponse_OK, own(2))
		ask(domain, pb.RateLimitResponse_OK, own(2))
		ask(domain, pb.RateLimitResponse_OVER_LIMIT, own(2))
		ask(domain, pb.RateLimitResponse_OVER_LIMIT, descriptor("a", "1"), own(2))
		ask(domain, pb.RateLimitResponse_OVER_LIMIT, own(0))
	}
	if s.unknown != 0 {
		t.Errorf("%d requests with a limit count as ones of unknown domains", s.unknown)
	}
	for range 3 {
		ask("other", pb.RateLimitResponse_OK, descriptor("a", "1"), limitedDescriptor(descriptor("k", "w"), 3, envoytype.RateLimitUnit_MINUTE, 0))
		ask("other", pb.RateLimitResponse_OK, descriptor("a", "1"))
	}
	if s.unknown != 3 || s.wrong != 0 {
		t.Errorf("%d of unknown domains, %d invalid", s.unknown, s.wrong)
	}
}

// TestQuotaOverTheProtocol: of several descriptors with quota, one with room is enough. Each
// descriptor has its own status.
func TestQuotaOverTheProtocol(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [
  {name: a, match: {attr: {a: "*"}}, per: [attr:a], limit: 1/1m fixed_window, quota: true},
  {name: b, match: {attr: {b: "*"}}, per: [attr:b], limit: 2/1m fixed_window, quota: true},
  {name: n, match: {attr: {n: "*"}}, per: [attr:n], limit: 9/1m fixed_window}]}`), nil)
	over := func(got *pb.RateLimitResponse) (codes string) {
		for _, status := range got.Statuses {
			codes += map[bool]string{true: "x", false: "."}[status.Code == pb.RateLimitResponse_OVER_LIMIT]
		}
		return codes
	}
	for i, want := range []string{"...", "x..", "xx.", "xx."} {
		got := s.checkAnswer(i < 2, descriptor("a", "1"), descriptor("b", "1"), descriptor("n", "1"))
		if codes := over(got); codes != want {
			t.Errorf("request %d: %s, want %s: %v", i, codes, want, got)
		}
		if denied := i >= 2; denied != (fields(got)["retry-after"] != "") {
			t.Errorf("request %d: %v", i, fields(got))
		}
	}
	if left := s.checkAnswer(true, descriptor("n", "1")).Statuses[0].LimitRemaining; left != 6 {
		t.Errorf("%d left beside requests of which two were refused, want 6", left)
	}
	s.checkAnswer(false, descriptor("a", "1"), descriptor("n", "1"))
	s.checkAnswer(true, descriptor("b", "2"), descriptor("n", "1"))
}

// TestInvalid: a malformed request is answered with an error that names the mistake.
func TestInvalid(t *testing.T) {
	s := serve(t, rules(t, perAddress), nil)
	many := make([]*ratelimit.RateLimitDescriptor, DescriptorsMax+1)
	for i := range many {
		many[i] = descriptor("a", "1")
	}
	long := descriptor()
	for range EntriesMax + 1 {
		long.Entries = append(long.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: "a", Value: "b"})
	}
	for want, request := range map[string]*pb.RateLimitRequest{
		"the domain is empty":                   {Descriptors: many[:1]},
		"there is no descriptor":                {Domain: "shop"},
		"more than 64 descriptors":              {Domain: "shop", Descriptors: many},
		"descriptor 1 has more than 32 entries": {Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{many[0], long}},
	} {
		_, err := s.RateLimitServiceClient.ShouldRateLimit(eventually.Context(t), request)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s.send(&pb.RateLimitRequest{Domain: "shop", Descriptors: many[1:]})
	s.checkAnswer(true, descriptor()) // a descriptor without entries
	got := s.send(&pb.RateLimitRequest{Domain: "other", Descriptors: many[:2]})
	if got.OverallCode != pb.RateLimitResponse_OK || s.unknown != 1 || s.wrong != 4 {
		t.Errorf("%v; %d unknown, %d invalid", got.OverallCode, s.unknown, s.wrong)
	}
}

// brokenStore is a store that does not answer.
type brokenStore struct{}

func (brokenStore) Take(context.Context, []counter.Check, []counter.Result) error {
	return errors.Join(counter.ErrUnavailable, errors.New("gone"))
}

// failingStore is a store that works and rejects each call with the error.
type failingStore struct{ error }

func (s failingStore) Take(context.Context, []counter.Check, []counter.Result) error {
	return fmt.Errorf("a reason: %w", s.error)
}

// TestStoreOverloaded: the request is denied regardless of on_error, with a time to retry.
func TestStoreOverloaded(t *testing.T) { testThatTheStoreDenies(t, counter.ErrOverloaded) }

// TestARejectedRequestIsDenied: a request is denied, too, if the store rejects its checks.
func TestARejectedRequestIsDenied(t *testing.T) { testThatTheStoreDenies(t, counter.ErrInvalid) }

func testThatTheStoreDenies(t *testing.T, err error) {
	for _, onError := range []string{"allow", "local", "deny"} {
		s := serve(t, rules(t, `{name: shop, on_error: `+onError+`, rules: [{name: r, limit: 1/1m}]}`), failingStore{err})
		got, again := s.checkAnswer(false, descriptor("a", "1")), ""
		for _, header := range got.ResponseHeadersToAdd {
			if header.Key == "retry-after" {
				again = header.Value
			}
		}
		if again != "1" {
			t.Errorf("on_error %s: %v", onError, got)
		}
	}
}

// TestStoreFails: on_error decides, and the response has no invented numbers.
func TestStoreFails(t *testing.T) {
	for policy, want := range map[string]bool{
		`{name: shop, rules: [{name: r, limit: 1/1m}]}`:                 true,
		`{name: shop, on_error: deny, rules: [{name: r, limit: 1/1m}]}`: false,
	} {
		s := serve(t, rules(t, policy), brokenStore{})
		got := s.checkAnswer(want, descriptor("a", "1"), limitedDescriptor(descriptor("a", "1"), 3, envoytype.RateLimitUnit_DAY, 0))
		for _, status := range got.Statuses {
			if status.CurrentLimit != nil || (status.Code == pb.RateLimitResponse_OK) != want {
				t.Errorf("%v", status)
			}
		}
		if n := s.sum(s.metrics.CheckSeconds); n != 1 {
			t.Errorf("%d durations were observed of one call of the store", n)
		}
		if f := fields(got); f["ratelimit"]+f["retry-after"] != "" || s.failed() != 1 {
			t.Errorf("%v, %d failures observed", f, s.failed())
		}
		s.checkAnswer(want, limitedDescriptor(descriptor("a", "1"), 3, envoytype.RateLimitUnit_DAY, 0))
	}
}

// TestHealth: the health service reports the service's state.
func TestHealth(t *testing.T) {
	s := serve(t, rules(t, perAddress), nil)
	client := healthpb.NewHealthClient(s.conn)
	for _, serving := range []bool{true, false, true} {
		s.SetServing(serving)
		for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService"} {
			got, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || (got.Status == healthpb.HealthCheckResponse_SERVING) != serving {
				t.Errorf("%q: %v, %v", name, got, err)
			}
		}
	}
}

// TestWatchingIsBounded: nothing is kept for unknown services, and the number of watchers is
// bounded.
func TestWatchingIsBounded(t *testing.T) {
	s := serve(t, rules(t, perAddress), nil)
	client := healthpb.NewHealthClient(s.conn)
	watch := func(name string) (*healthpb.HealthCheckResponse, codes.Code) {
		stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			t.Fatal(err)
		}
		said, err := stream.Recv()
		return said, status.Code(err)
	}
	if said, code := watch("no.such.Service"); code != codes.NotFound {
		t.Errorf("of a service that is not there: %v, %v", said, code)
	}
	for i := range watchersMax {
		if said, code := watch(""); code != codes.OK || said.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("watcher %d: %v, %v", i+1, said, code)
		}
	}
	if said, code := watch(""); code != codes.ResourceExhausted {
		t.Errorf("one watcher more: %v, %v", said, code)
	}
}

// TestResponse: Envoy gets the rule's response, except for the status, which is Envoy's own.
func TestResponse(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, headers: none, rules: [{name: r, limit: 1/1m fixed_window,
		response: {status: 503, body: '{"a":1}', headers: {X-Why: limit}}}]}`), nil)
	if f := fields(s.checkAnswer(true, descriptor("a", "1"))); len(f) > 0 {
		t.Errorf("%v", f)
	}
	got := s.checkAnswer(false, descriptor("a", "1"))
	if diff := cmp.Diff(map[string]string{"cache-control": "no-store", "content-type": "application/json", "x-why": "limit", "retry-after": "60"}, fields(got)); diff != "" {
		t.Error(diff)
	}
	if string(got.RawBody) != `{"a":1}` {
		t.Errorf("%s", got.RawBody)
	}
}

// TestUnits: every window is expressed in the protocol's units if possible.
func TestUnits(t *testing.T) {
	for text, want := range map[string]string{"1/1s": "SECOND 1", "1/90s": "SECOND 90", "1/1m": "MINUTE 1", "1/90m": "MINUTE 90",
		"1/1h": "HOUR 1", "1/1d": "DAY 1", "1/day": "DAY 1", "1/7d": "WEEK 1", "1/week": "WEEK 1", "1/14d": "WEEK 2", "1/30d": "MONTH 1",
		"1/month": "MONTH 1", "1/31d": "DAY 31", "1/year": "YEAR 1", "1/500ms": "UNKNOWN 1"} {
		l, err := counter.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		unit, several := unitOf(&l)
		if got := fmt.Sprint(unit, " ", several); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
