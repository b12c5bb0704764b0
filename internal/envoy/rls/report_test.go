// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
)

// unsentError is the error of a store that has certainly not executed a call.
type unsentError struct{ error }

func (unsentError) Unsent() bool    { return true }
func (e unsentError) Unwrap() error { return e.error }

// overloadedStore is a store that does not execute calls with the operation op while the field
// named on is set.
type overloadedStore struct {
	counter.Store
	on atomic.Bool
	op counter.Op
}

func (o *overloadedStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	for i := range checks {
		if o.on.Load() && checks[i].Op == o.op {
			return unsentError{fmt.Errorf("too many calls wait: %w", counter.ErrOverloaded)}
		}
	}
	return o.Store.Take(ctx, checks, results)
}

// ended is the mark of a call that Envoy makes at the end of a stream.
const ended = "ended=via_upstream,192.0.2.9:80"

// markEnded marks the calls that arrive with ctx.
func markEnded(ctx context.Context) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs(StreamKey, ended))
}

// TestLateReportsAreCharged: many streams of a client end at the same time, on a busy machine. The
// client is charged what they have used. Envoy sends each report once, and does not use the answer.
func TestLateReportsAreCharged(t *testing.T) {
	used := func(n uint64) *pb.RateLimitRequest {
		return &pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{
			hits(descriptor("k", "v"), n, false), descriptor("other", "v"), hits(descriptor("third", "v"), 1, true)}}
	}
	overloads := func(op counter.Op) func(*testing.T, *served, *core.Ruleset) *pb.RateLimitResponse {
		return func(t *testing.T, s *served, _ *core.Ruleset) *pb.RateLimitResponse {
			store := &overloadedStore{op: op}
			s.between(func(inner counter.Store) counter.Store { store.Store = inner; return store })
			store.on.Store(true)
			defer store.on.Store(false)
			return s.send(used(150))
		}
	}
	for name, send := range map[string]func(*testing.T, *served, *core.Ruleset) *pb.RateLimitResponse{
		"all places are taken": func(_ *testing.T, s *served, _ *core.Ruleset) *pb.RateLimitResponse {
			s.under.all.Add(RequestsMaxDefault)
			defer s.under.all.Add(-RequestsMaxDefault)
			return s.send(used(150))
		},
		"Envoy has left": func(t *testing.T, s *served, _ *core.Ruleset) *pb.RateLimitResponse {
			ctx, cancel := context.WithDeadline(markEnded(t.Context()), time.Now().Add(-time.Second))
			defer cancel()
			r, err := s.Service.ShouldRateLimit(ctx, used(150))
			if err != nil {
				t.Error(err)
			}
			return r
		},
		"the time is over before the store is called": func(t *testing.T, s *served, rs *core.Ruleset) *pb.RateLimitResponse {
			ctx, cancel := context.WithTimeout(markEnded(t.Context()), 20*time.Millisecond)
			defer cancel()
			s.options.Ruleset = func(string) (*core.Ruleset, bool) {
				<-ctx.Done()
				return rs, true
			}
			r, err := s.Service.ShouldRateLimit(ctx, used(150))
			if err != nil {
				t.Error(err)
			}
			return r
		},
		"the store does not execute the call":        overloads(counter.OpTake),
		"the store does not execute a forced charge": overloads(counter.OpForce),
	} {
		t.Run(name, func(t *testing.T) {
			rs := rules(t, `{name: shop, rules: [
				{name: r, match: {attr: {k: []}}, per: [attr:k], limit: 200/1h fixed_window},
				{name: o, match: {attr: {other: []}}, per: [attr:other], limit: 9/1h},
				{name: n, match: {attr: {third: []}}, per: [attr:third], limit: 9/1h}]}`)
			s := serve(t, rs, nil)
			s.mark = ended
			s.checkAnswer(true, hits(descriptor("k", "v"), 100, false))
			if r := send(t, s, rs); r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
				t.Errorf("%v", r)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s.checkUsed(250)
		})
	}
}

// served.checkUsed checks that the client has used the given number of units, which is more than
// the limit of 200, and that it has used nothing of the denied descriptor's limit. After a refund
// of the units beyond the limit, nothing is left. After a refund of one more unit, one is left.
func (s *served) checkUsed(units uint64) {
	s.Helper()
	left := func(key string) uint32 { return s.ask(hits(descriptor(key, "v"), 0, true)).Statuses[0].LimitRemaining }
	s.ask(hits(descriptor("k", "v"), units-200, true))
	if n := left("k"); n != 0 {
		s.Errorf("after %d of 200 units and a refund of the rest, %d are left, want 0", units, n)
	}
	s.ask(hits(descriptor("k", "v"), 1, true))
	if n, others := left("k"), left("other"); n != 1 || others != 9 {
		s.Errorf("%d left after a further refund, want 1; %d of the denied descriptor, want 9", n, others)
	}
}

// TestALateReportWaitsForTheStore: Close waits until past usage is charged.
func TestALateReportWaitsForTheStore(t *testing.T) {
	store := &hangingStore{answer: make(chan struct{})}
	s := serve(t, rules(t, perAddress), nil)
	store.Store = s.options.Store
	s.Service = New(Options{Store: store.Store, Corrections: store, Metrics: s.metrics, Observer: s, Ruleset: s.options.Ruleset, Now: s.options.Now})
	s.under.all.Add(RequestsMaxDefault)
	if r, err := s.Service.ShouldRateLimit(markEnded(t.Context()), &pb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimit.RateLimitDescriptor{hits(descriptor("remote_address", "192.0.2.1"), 1, false)}}); err != nil || r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v, %v", r, err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed before the store has answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(store.answer)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	eventually.Until(t, 10*time.Second, "it is counted", func() bool { return s.sum(s.metrics.Settlements) == 1 })
}

// expiringVerifier is a verifier whose tokens have expired if the field named expired is set.
type expiringVerifier struct{ expired atomic.Bool }

func (v *expiringVerifier) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialInvalid
}

func (v *expiringVerifier) VerifyFor(asker *policy.Asker, token string) (*policy.Identity, policy.CredentialState) {
	if v.expired.Load() && !asker.Past {
		return nil, policy.CredentialExpired
	}
	return &policy.Identity{Kind: "user", ID: token}, policy.CredentialValid
}

// TestReportsOfExpiredTokensAreCharged: a client that keeps its streams open until its token has
// expired is charged what they have used. If the policy then identifies the client by its address,
// the address is charged, because the token may already have been expired when the stream began.
func TestReportsOfExpiredTokensAreCharged(t *testing.T) {
	for _, deny := range []bool{true, false} {
		for _, busy := range []bool{false, true} {
			v := new(expiringVerifier)
			rs, err := core.Compile(policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "r", Per: []policy.Dimension{{}}, Limits: limittest.All(t, "100/1h")}},
				Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: v, DenyInvalid: deny, From: []policy.CredentialSource{{Kind: policy.FromBearer}}},
					{}}})
			if err != nil {
				t.Fatal(err)
			}
			s := serve(t, rs, nil)
			s.mark = ended
			client := func() *ratelimit.RateLimitDescriptor {
				return descriptor("authorization", "Bearer u", "remote_address", "192.0.2.1")
			}
			left := func() uint32 { return s.ask(hits(client(), 0, true)).Statuses[0].LimitRemaining }
			s.checkAnswer(true, hits(client(), 0, false))
			v.expired.Store(true)
			if busy {
				s.under.all.Add(RequestsMaxDefault)
			}
			s.checkAnswer(!deny && !busy, hits(client(), 60, false))
			if busy {
				s.under.all.Add(-RequestsMaxDefault)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if n := left(); !deny && n != 40 {
				t.Errorf("busy %t: %d left of the address, want 40", busy, n)
			}
			v.expired.Store(false)
			if n, want := left(), map[bool]uint32{true: 40, false: 100}[deny]; n != want {
				t.Errorf("deny %t, busy %t: %d left of the user, want %d", deny, busy, n, want)
			}
		}
	}
}
