// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	envoycore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// Bounds of a request. Envoy's configuration determines the numbers of descriptors and entries. A
// request with too many is answered with an error, because the configuration is wrong. Clients
// determine the length of values, which is bounded only by gRPC's message size: 4 MiB, more than
// Envoy's bound for headers.
const (
	// each descriptor needs at least one check, unless it has no rule
	DescriptorsMax = counter.ChecksMax
	EntriesMax     = 32 // of a descriptor
)

// RequestsMaxDefault is the default of Options.RequestsMax. Requests of one client wait for each
// other's answers, in internal/store/leasestore. Therefore many requests of a burst are under way
// at once, and each takes a few KB. If there are more than the service can decide in about 200 ms,
// Envoy times out and admits them. So further requests are answered OVER_LIMIT, because after an
// error Envoy would admit them too.
const RequestsMaxDefault = 1 << 12

// Options configures [New].
type Options struct {
	// Ruleset returns the policy in force, and reports whether its rules cover the domain. If the
	// rules do not cover the domain, only descriptors with their own limits are limited, in the
	// policy's namespace. Ruleset is called concurrently, for every request.
	Ruleset func(domain string) (rs *core.Ruleset, known bool)
	// Directory returns the directory of clients for a policy that Ruleset returned, or nil if the
	// policy has no directory. A nil Directory means that no policy has a directory.
	Directory func(rs *core.Ruleset) *directory.Directory
	// Trial begins a trial of a request by a candidate policy, or returns nil if there is no
	// candidate. The trial uses the directory that Directory returns. If the function Trial is nil,
	// there is no candidate.
	Trial func(denied bool) *shadow.Trial
	// Store charges requests. The caller closes the store after the service.
	Store counter.Store
	// Corrections is the store for past usage that was not charged with its request. Such usage is
	// charged there in the background. Nil means Store. The caller closes this store, too, after
	// the service.
	Corrections counter.Store
	// Metrics counts store calls and corrections. Nil means new metrics that are not exported.
	Metrics *metrics.Metrics
	// Outages logs outages of the store. Nil means that no outages are logged.
	Outages *enforce.Outages
	// Loans lets requests wait for units of other regions. Nil means that no request waits.
	Loans *regionstore.Store
	// RequestsMax is the greatest number of requests that are answered concurrently. If RequestsMax
	// is 0, RequestsMaxDefault applies.
	RequestsMax int
	// Tracer makes the spans of checks. Nil means no spans.
	Tracer *enforce.Tracer
	// Observer observes the outcomes of requests. Nil means no observer.
	Observer Observer
	// Now is the wall clock. Nil means this machine's. Counters do not depend on it.
	Now func() counter.Micros
}

// Observer counts the outcomes of requests. An Observer is called concurrently and must not keep
// its arguments.
type Observer interface {
	// Decided reports a request that was decided. The plan's Outcomes and Credentials have the
	// details. The observer ends the span. The argument failure is the error of the store, or nil.
	Decided(plan *core.Plan, decision *core.Decision, span *enforce.Span, failure error)
	// UnknownDomain reports a request that was admitted because no rule covers its domain and its
	// descriptors have no limits of their own.
	UnknownDomain()
	// InvalidTarget reports a request that was denied because servers could read its path or host
	// differently.
	InvalidTarget()
	// Refused reports a call at the end of a stream that Envoy has denied. Nothing is charged.
	Refused()
	// Unmarked reports a call with hits that Envoy has not marked as [StreamKey] says.
	Unmarked()
	// Invalid reports a request that was answered with an error.
	Invalid(err error)
	// Busy reports a request beyond RequestsMax or beyond the share of its address, or with too
	// little time left.
	Busy()
	// Panicked reports a request that panicked and was answered with an error. Panicked is called
	// during the panic.
	Panicked(reason any)
}

// Service answers ShouldRateLimit. Use [New] to create one. A Service is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer
	options   Options
	enforcer  *enforce.Enforcer
	later     *settle.Queue
	health    watchedHealth
	calls     sync.Pool
	under     places
	overrides overrides
}

// New returns a service. The service's health is serving until SetServing changes it. Ruleset and
// Store are required.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = func() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }
	}
	if o.RequestsMax <= 0 {
		o.RequestsMax = RequestsMaxDefault
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Directory == nil {
		o.Directory = func(*core.Ruleset) *directory.Directory { return nil }
	}
	if o.Trial == nil {
		o.Trial = func(bool) *shadow.Trial { return nil }
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New()
	}
	if o.Corrections == nil {
		o.Corrections = o.Store
	}
	s := &Service{options: o, enforcer: enforce.New(o.Store, o.Metrics), under: newPlaces(),
		later:  settle.New(o.Corrections, func(end settle.End) { o.Metrics.Settlements.WithLabelValues(string(end)).Inc() }),
		health: watchedHealth{Server: health.NewServer()}}
	s.enforcer.Log(o.Outages)
	s.enforcer.WaitForLoans(o.Loans)
	s.later.Panic = o.Observer.Panicked
	s.calls.New = func() any { return new(call) }
	s.SetServing(true)
	return s
}

// Close completes the charges that are made in the background. Close must be called after the last
// request has been answered and before the store is closed.
func (s *Service) Close() error {
	if !s.later.Stop(settle.Deadline) {
		return errors.New("some usage that Envoy reported was not charged")
	}
	return nil
}

// Register adds the service and gRPC's health service to a server. The server must use the codec of
// [Service.Codec].
func (s *Service) Register(server *grpc.Server) {
	pb.RegisterRateLimitServiceServer(server, s)
	healthpb.RegisterHealthServer(server, &s.health)
}

// watchersMax bounds the streams that watch the health. Envoy needs no such stream, because it
// polls the health.
const watchersMax = 256

// watchedHealth is a health service that bounds the watching streams and rejects unknown services.
// The library's health service keeps the name of every service that was ever watched.
type watchedHealth struct {
	*health.Server
	watchers atomic.Int64
}

// Watch implements the health service.
func (w *watchedHealth) Watch(asked *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if asked.GetService() != "" && asked.GetService() != pb.RateLimitService_ServiceDesc.ServiceName {
		return status.Error(codes.NotFound, "unknown service")
	}
	defer w.watchers.Add(-1)
	if w.watchers.Add(1) > watchersMax {
		return status.Error(codes.ResourceExhausted, "too many watchers")
	}
	return w.Server.Watch(asked, stream)
}

// SetServing sets the answer of the health service, for the server and for the rate limit service.
func (s *Service) SetServing(serving bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
	s.health.SetServingStatus(pb.RateLimitService_ServiceDesc.ServiceName, state)
}

// call is one request under way. A call is reused.
type call struct {
	plan         core.Plan
	writer       response.Writer
	descriptions []description
	descriptors  []core.Descriptor
	reports      []counter.Check
	results      []counter.Result
	body         []byte
	past         core.Past      // of descriptors with their own hits
	left         counter.Micros // the remaining time for verifying tokens
	span         enforce.Span
}

// call.release drops the request, so that none of its data remains in memory.
func (c *call) release() {
	c.plan.Reset()
	c.span = enforce.Span{}
	clear(c.descriptions)
	clear(c.descriptors)
	clear(c.reports)
}

// Service.free releases a call for the next request.
func (s *Service) free(c *call) {
	c.release()
	s.calls.Put(c)
}

// ShouldRateLimit decides one request of Envoy. The error is for malformed requests. A denial by
// the policy is OVER_LIMIT, even if the store does not answer and on_error is deny.
func (s *Service) ShouldRateLimit(ctx context.Context, request *pb.RateLimitRequest) (r *pb.RateLimitResponse, err error) {
	defer func() {
		// Otherwise a panic would end the process, with all its requests.
		if reason := recover(); reason != nil {
			s.options.Observer.Panicked(reason)
			r, err = nil, status.Error(codes.Internal, "internal error (panic): see the log")
		}
	}()
	from, ok := s.under.take(request, s.options.RequestsMax)
	defer s.under.leave(from)
	until, cancel, verify, timely := withHalfDeadline(ctx)
	defer cancel()
	if err := validate(request); err != nil {
		return nil, s.invalid(err)
	}
	rs, known := s.options.Ruleset(request.GetDomain())
	clients, phase := s.options.Directory(rs), phaseOf(ctx)
	if phase == phaseRefused {
		s.options.Observer.Refused()
		return unlimited(request), nil
	}
	if !known {
		if !bringsLimit(request) {
			s.options.Observer.UnknownDomain()
			return unlimited(request), nil
		}
		rs = s.overrides.alone(rs)
	}
	past := s.pastOf(phase, request)
	if !ok || !timely {
		s.options.Observer.Busy()
		if past == core.PastYes {
			s.reportApart(rs, clients, request, 0)
		}
		return overLimit(request), nil
	}
	c := s.calls.Get().(*call)
	c.span, c.past = s.spanOf(ctx), past
	defer s.free(c)
	if response, err := s.read(c, rs, request); err != nil || response != nil {
		return response, err
	}
	c.left = verify
	return s.decide(ctx, until, c, rs, clients, request)
}

// spanOf returns the span of the request to which ctx belongs, as a child of the span of Envoy's
// call.
func (s *Service) spanOf(ctx context.Context) enforce.Span {
	if s.options.Tracer == nil {
		return enforce.Span{}
	}
	sent := metadata.ValueFromIncomingContext(ctx, "traceparent")
	if len(sent) != 1 {
		return enforce.Span{}
	}
	return s.options.Tracer.Within(sent[0])
}

// bringsLimit reports whether a descriptor has a limit of its own.
func bringsLimit(request *pb.RateLimitRequest) bool {
	return slices.ContainsFunc(request.GetDescriptors(), func(d *ratelimit.RateLimitDescriptor) bool { return d.GetLimit() != nil })
}

// overLimit returns the answer to a request beyond RequestsMax, or with too little time left. The
// answer is not an error, because after an error Envoy would admit the request.
func overLimit(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT,
		ResponseHeadersToAdd: []*envoycore.HeaderValue{uncached()}}
	for range request.GetDescriptors() {
		response.Statuses = append(response.Statuses,
			&pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OVER_LIMIT})
	}
	return response
}

func (s *Service) invalid(err error) error {
	s.options.Observer.Invalid(err)
	return status.Error(codes.InvalidArgument, err.Error())
}

// validate rejects requests that cannot be decided.
func validate(request *pb.RateLimitRequest) error {
	switch n := len(request.GetDescriptors()); {
	case request.GetDomain() == "":
		return fmt.Errorf("the domain is empty")
	case n == 0:
		return fmt.Errorf("there is no descriptor")
	case n > DescriptorsMax:
		return fmt.Errorf("there are more than %d descriptors", DescriptorsMax)
	}
	for i, d := range request.GetDescriptors() {
		if len(d.GetEntries()) > EntriesMax {
			return fmt.Errorf("descriptor %d has more than %d entries", i, EntriesMax)
		}
	}
	return nil
}

// Service.read converts the request to descriptors. A non-nil response is the answer if Envoy
// sends a limit of 0, or a path or host that servers could read differently.
func (s *Service) read(c *call, rs *core.Ruleset, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	sources := request.GetDescriptors()
	if cap(c.descriptions) < len(sources) {
		c.descriptions, c.descriptors = make([]description, len(sources)), make([]core.Descriptor, len(sources))
	}
	c.descriptions, c.descriptors = c.descriptions[:len(sources)], c.descriptors[:len(sources)]
	now := s.options.Now()
	for i, source := range sources {
		d := &c.descriptions[i]
		d.read(request.GetDomain(), source, now)
		if !rs.ServesTarget(d.Method(), d.Path(), d.Host()) {
			s.options.Observer.InvalidTarget()
			return rejectAmbiguous(request), nil
		}
		c.descriptors[i] = core.Descriptor{Ruleset: rs, Attributes: d, Hits: max(1, int64(request.GetHitsAddend()))}
		readHits(&c.descriptors[i], source, c.past)
		if source.GetLimit() == nil {
			continue
		}
		if source.GetLimit().GetRequestsPerUnit() == 0 {
			return forbidden(request), nil
		}
		own, err := s.overrides.rulesetOf(rs, source.GetLimit())
		if err != nil {
			return nil, s.invalid(fmt.Errorf("descriptor %d: %w", i, err))
		}
		c.descriptors[i].Ruleset = own
	}
	return nil, nil
}

// call.resolve adds the descriptors to the plan with the records of their clients. If records
// are unknown, it makes the directory read them. The network of a descriptor's address may be
// blocked even if the descriptor has a limit of its own.
//
// The result named timely is false if the time for the request is over before the store or the
// directory was called. The caller must then deny the request. Clients can cause such a delay, so
// on_error, which may admit the request, must not apply.
func (c *call) resolve(ctx context.Context, clients *directory.Directory) (timely bool) {
	c.add(clients)
	if ctx.Err() != nil {
		return false
	}
	if len(c.plan.Unresolved()) > 0 {
		clients.Resolve(ctx, &c.plan, func() { c.plan.AddDescriptors(c.descriptors) })
	}
	return true
}

// call.add adds the descriptors to the plan, with the records of clients that are known.
func (c *call) add(clients *directory.Directory) {
	if clients != nil {
		c.plan.UseDirectory(clients)
	}
	c.plan.AddDescriptors(c.descriptors)
}

// Service.decide calls the store and returns the response. The argument clients is the policy's
// directory, or nil. The request waits for a loan if it has to. The context ctx belongs to Envoy's
// call. The error is the error of ctx: Envoy has canceled the call, because the client has reset
// its stream. The request is then not counted as decided, and on_error does not apply, because the
// store may work.
func (s *Service) decide(ctx, until context.Context, c *call, rs *core.Ruleset, clients *directory.Directory,
	request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	c.plan.Hurry(&c.left)
	if !c.resolve(until, clients) {
		s.options.Observer.Busy()
		s.reportLater(c)
		return overLimit(request), nil
	}
	if c.past == core.PastYes && c.deniesExpired() {
		s.reportApart(rs, clients, request, c.left)
	}
	checks, times := c.plan.Checks(), loanTimes(ctx)
	var err error
	if len(checks) > 0 {
		var gone bool
		gone, err = s.take(ctx, until, times, c)
		if gone || err != nil && errors.Is(ctx.Err(), context.Canceled) {
			if gone || counter.Unsent(err) {
				s.reportLater(c)
			}
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	var decision core.Decision
	if err != nil {
		if counter.Unsent(err) {
			s.reportLater(c)
		}
		decision = c.plan.Fail(err)
	} else {
		decision = c.plan.DecideDescriptors(c.descriptors)
		s.report(until, times.Last, c, len(checks) > 0, decision.Denied())
	}
	s.options.Observer.Decided(&c.plan, &decision, &c.span, err)
	s.tryOut(request, c, decision.Denied())
	return c.answer(&decision, len(request.GetDescriptors()), err != nil), nil
}

// Service.take calls the store. If the quotas of one descriptor lack room and the quotas of another
// descriptor may have some, it calls the store again. Such a request waits for a loan only when no
// other quota is left.
func (s *Service) take(ctx, until context.Context, times enforce.Times, c *call) (gone bool, err error) {
	checks, results := c.plan.Checks(), c.plan.Results()
	for c.plan.QuotasLeft(c.descriptors) {
		now := enforce.Times{Wait: time.Now(), Last: times.Last}
		gone, err = s.enforcer.TakeOrWait(ctx, until, now, checks, results)
		if gone || err != nil {
			return gone, err
		}
		if !c.plan.TryNextQuota(c.descriptors) {
			if !s.enforcer.Lacks(&c.plan, checks) {
				return false, nil
			}
			break
		}
	}
	return s.enforcer.TakeOrWait(ctx, until, times, checks, results)
}

// noObserver is an Observer whose methods do nothing.
type noObserver struct{}

func (noObserver) Decided(*core.Plan, *core.Decision, *enforce.Span, error) {}
func (noObserver) UnknownDomain()                                           {}
func (noObserver) InvalidTarget()                                           {}
func (noObserver) Refused()                                                 {}
func (noObserver) Unmarked()                                                {}
func (noObserver) Invalid(error)                                            {}
func (noObserver) Busy()                                                    {}
func (noObserver) Panicked(any)                                             {}
