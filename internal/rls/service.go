// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/core"
)

// Bounds of a request. How many descriptors and entries there are is what Envoy is set up to send and not what its clients
// choose, so that beyond them the answer is an error, which shows that set-up to be wrong. How long a value is, clients
// choose: there gRPC's own bound of a message holds, 4 MiB, which is more than Envoy takes of headers.
const (
	DescriptorsMax = core.ChecksMax // each asks a store at least one thing, or it has no rule
	EntriesMax     = 32             // of a descriptor
)

// RequestsMaxDefault is how many requests are answered at once. Requests of one client wait for each other at the gate of
// their counter, so a burst is many requests under way, which hold some KB each. One more is OVER_LIMIT: an error would have
// Envoy let it pass.
const RequestsMaxDefault = 1 << 14

// verifyTime is how long the tokens of one request may take that nobody has seen before: Envoy waits 20 ms for the answer, if
// it is told nothing else, and lets the request pass then. A token beyond it counts as one that does not verify, until it is
// shown again.
const verifyTime = 8 * core.Millisecond

// Options are what a service is made of.
type Options struct {
	// Ruleset returns the policy in force, and whether its rules are for the domain: if not, only what descriptors bring limits
	// of their own is limited, in the policy's namespace. It is called for every request, concurrently.
	Ruleset func(domain string) (rs *core.Ruleset, known bool)
	Store   core.Store
	// RequestsMax is how many requests are answered at once; 0 is RequestsMaxDefault.
	RequestsMax int
	// Observer is told what becomes of requests; nil: nobody is.
	Observer Observer
	// Now is the wall clock; nil is that of this machine. It decides no counter.
	Now func() core.Micros
}

// Observer counts what becomes of requests. It is called concurrently, and must not keep what it is given.
type Observer interface {
	// Decided is told of a request that was decided; Outcomes and Credentials of the plan say how.
	Decided(plan *core.Plan, decision *core.Decision)
	// StoreFailed is told that the store did not answer, so that on_error decided, or, of a report, that it may be lost.
	StoreFailed(err error, report bool)
	// UnknownDomain is told of a request for whose domain there is no rule, and which brings no limit, so that it is let through.
	UnknownDomain()
	// Invalid is told of a request that was answered with an error.
	Invalid(err error)
	// Busy is told of a request beyond RequestsMax.
	Busy()
	// Panicked is told, while the panic is under way, of a request that was answered with an error for it.
	Panicked(reason any)
}

// Service answers ShouldRateLimit. Make one with [New]; it is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer
	options   Options
	health    watched
	calls     sync.Pool
	under     atomic.Int64 // requests under way
	overrides overrides
}

// New returns a service, which is serving until SetServing says otherwise. Ruleset and Store are required.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = func() core.Micros { return core.Micros(time.Now().UnixMicro()) }
	}
	if o.RequestsMax <= 0 {
		o.RequestsMax = RequestsMaxDefault
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	s := &Service{options: o, health: watched{Server: health.NewServer()}}
	s.calls.New = func() any { return new(call) }
	s.SetServing(true)
	return s
}

// Register adds the service and gRPC's health service to a server, which must be made with the codec of [Service.Codec].
func (s *Service) Register(server *grpc.Server) {
	pb.RegisterRateLimitServiceServer(server, s)
	healthpb.RegisterHealthServer(server, &s.health)
}

// watchersMax is how many may have themselves told of changes of the health. Envoy asks for it instead.
const watchersMax = 256

// watched is a health service that remembers nothing of services that are not there, and bounds who watches: the one of the
// library keeps the name of whatever was once asked to be watched.
type watched struct {
	*health.Server
	watchers atomic.Int64
}

// Watch implements the health service.
func (w *watched) Watch(asked *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if asked.GetService() != "" && asked.GetService() != pb.RateLimitService_ServiceDesc.ServiceName {
		return status.Error(codes.NotFound, "this service is not here")
	}
	defer w.watchers.Add(-1)
	if w.watchers.Add(1) > watchersMax {
		return status.Error(codes.ResourceExhausted, "too many watch already")
	}
	return w.Server.Watch(asked, stream)
}

// SetServing sets what the health service answers, for the server and for the rate limit service.
func (s *Service) SetServing(serving bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
	s.health.SetServingStatus(pb.RateLimitService_ServiceDesc.ServiceName, state)
}

// call is one request on its way. It is used again.
type call struct {
	plan         core.Plan
	descriptions []description
	descriptors  []core.Descriptor
	reports      []core.Check
	results      []core.Result
	body         []byte
	left         core.Micros // of verifyTime
}

// release lets go of the request, so that nothing of it is kept until the next.
func (c *call) release() {
	c.plan.Reset()
	clear(c.descriptions)
	clear(c.descriptors)
	clear(c.reports)
}

// ShouldRateLimit decides one request of Envoy's. The error is for requests that are wrong: what the policy refuses is
// OVER_LIMIT, also where the store cannot be asked and on_error says deny.
func (s *Service) ShouldRateLimit(ctx context.Context, request *pb.RateLimitRequest) (r *pb.RateLimitResponse, err error) {
	defer func() {
		if reason := recover(); reason != nil { // gRPC lets a panic end the process, and everybody's requests with it
			s.options.Observer.Panicked(reason)
			r, err = nil, status.Error(codes.Internal, "a panic, which the log tells of")
		}
	}()
	defer s.under.Add(-1)
	crowded := s.under.Add(1) > int64(s.options.RequestsMax)
	if err := validate(request); err != nil {
		return nil, s.invalid(err)
	}
	rs, known := s.options.Ruleset(request.GetDomain())
	if !known {
		if !bringsLimit(request) {
			s.options.Observer.UnknownDomain()
			return unlimited(request), nil
		}
		rs = s.overrides.alone(rs)
	}
	if crowded {
		s.options.Observer.Busy()
		return overLimit(request), nil
	}
	c := s.calls.Get().(*call)
	defer func() {
		c.release()
		s.calls.Put(c)
	}()
	if response, err := s.read(c, rs, request); err != nil || response != nil {
		return response, err
	}
	return s.decide(ctx, c, request), nil
}

// bringsLimit reports whether a descriptor has a limit of its own.
func bringsLimit(request *pb.RateLimitRequest) bool {
	return slices.ContainsFunc(request.GetDescriptors(), func(d *ratelimit.RateLimitDescriptor) bool { return d.GetLimit() != nil })
}

// overLimit is the answer to a request beyond RequestsMax. An error would not do, since Envoy lets a request pass then.
func overLimit(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OVER_LIMIT}
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

// validate refuses what cannot be decided.
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

// read makes descriptors of the request. The response is the answer where a limit that Envoy sends is 0.
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
		c.descriptors[i] = core.Descriptor{Ruleset: rs, Attributes: d, Hits: max(1, int64(request.GetHitsAddend()))}
		readHits(&c.descriptors[i], source)
		if source.GetLimit() == nil {
			continue
		}
		if source.GetLimit().GetRequestsPerUnit() == 0 {
			return forbidden(request), nil
		}
		own, err := s.overrides.of(rs, source.GetLimit())
		if err != nil {
			return nil, s.invalid(fmt.Errorf("descriptor %d: %w", i, err))
		}
		c.descriptors[i].Ruleset = own
	}
	return nil, nil
}

// decide asks the store and answers.
func (s *Service) decide(ctx context.Context, c *call, request *pb.RateLimitRequest) *pb.RateLimitResponse {
	c.left = verifyTime
	c.plan.Hurry(&c.left)
	c.plan.AddDescriptors(c.descriptors)
	checks := c.plan.Checks()
	var err error
	if len(checks) > 0 {
		err = s.options.Store.Take(ctx, checks, c.plan.Results())
	}
	var decision core.Decision
	if err != nil {
		s.options.Observer.StoreFailed(err, false)
		decision = c.plan.Fail(err)
	} else {
		decision = c.plan.DecideDescriptors(c.descriptors)
		s.report(ctx, c, len(checks) > 0, decision.Refused())
	}
	s.options.Observer.Decided(&c.plan, &decision)
	return c.answer(&decision, len(request.GetDescriptors()), err != nil)
}

// report asks the store to record what has happened whatever was decided.
func (s *Service) report(ctx context.Context, c *call, asked, refused bool) {
	if !asked {
		return
	}
	c.reports = c.plan.Reports(c.reports[:0], c.descriptors, refused)
	if len(c.reports) == 0 {
		return
	}
	if cap(c.results) < len(c.reports) {
		c.results = make([]core.Result, len(c.reports))
	}
	if err := s.options.Store.Take(ctx, c.reports, c.results[:len(c.reports)]); err != nil {
		s.options.Observer.StoreFailed(err, true)
	}
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Decided(*core.Plan, *core.Decision) {}
func (nobody) StoreFailed(error, bool)            {}
func (nobody) UnknownDomain()                     {}
func (nobody) Invalid(error)                      {}
func (nobody) Busy()                              {}
func (nobody) Panicked(any)                       {}
