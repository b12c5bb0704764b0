// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"slices"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/settle"
)

// Service.report records past usage in the store, whatever was decided. If ctx has ended because
// the request has waited, the store must answer by the instant in the argument named last.
func (s *Service) report(ctx context.Context, last time.Time, c *call, asked, denied bool) {
	if !asked {
		return
	}
	c.reports = c.plan.Reports(c.reports[:0], c.descriptors, denied)
	if len(c.reports) == 0 {
		return
	}
	if cap(c.results) < len(c.reports) {
		c.results = make([]counter.Result, len(c.reports))
	}
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(context.Background(), last)
		defer cancel()
	}
	err := s.enforcer.Take(ctx, c.reports, c.results[:len(c.reports)])
	if counter.Unsent(err) {
		s.later.Send(settle.Copy(c.reports))
	}
	// Any other report that failed is counted and lost, because the store may have executed it.
}

// Service.reportLater charges past usage in the background if the store was not called in time,
// or has certainly not executed the call. Envoy does not repeat a report, and the client determines
// how many of its streams end at once. Refunds are lost.
func (s *Service) reportLater(c *call) {
	if len(c.plan.Checks()) == 0 {
		return
	}
	clear(c.plan.Results())
	c.reports = slices.DeleteFunc(c.plan.Reports(c.reports[:0], c.descriptors, true),
		func(c counter.Check) bool { return c.Op != counter.OpForce })
	if len(c.reports) > 0 {
		s.later.Send(settle.Copy(c.reports))
	}
}

// Service.reportApart does what reportLater does, for a request that has no plan, or whose plan has
// no checks because its token has expired. The argument named verify is the time for unknown
// tokens. Records of clients are not read, so a report is lost if its client is identified by a key
// of the directory that is not remembered.
func (s *Service) reportApart(rs *core.Ruleset, clients *directory.Directory, request *pb.RateLimitRequest, verify counter.Micros) {
	c := s.calls.Get().(*call)
	defer s.free(c)
	c.past = core.PastYes
	if response, err := s.read(c, rs, request); err != nil || response != nil {
		return
	}
	c.left = verify
	c.plan.Hurry(&c.left)
	c.add(clients)
	if c.deniesExpired() {
		c.plan.Retry()
		c.plan.AcceptExpired()
		c.plan.AddDescriptors(c.descriptors)
	}
	s.reportLater(c)
}

// call.deniesExpired reports whether the request is denied because its token has expired, which can
// happen during a stream. If the policy then identifies the client in another way, that client is
// charged, because the token may already have been expired when the stream began.
func (c *call) deniesExpired() bool {
	return len(c.plan.Checks()) == 0 && slices.ContainsFunc(c.plan.Credentials(),
		func(u core.CredentialUse) bool { return u.State == policy.CredentialExpired })
}
