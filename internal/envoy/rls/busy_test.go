// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
)

// hangingStore is a store that answers when the test permits it.
type hangingStore struct {
	counter.Store
	answer chan struct{}
}

func (h *hangingStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	<-h.answer
	return h.Store.Take(ctx, checks, results)
}

// TestTooManyRequests: requests beyond the bound are answered at once, and all other requests when
// they are decided.
func TestTooManyRequests(t *testing.T) {
	store := &hangingStore{answer: make(chan struct{})}
	s := serve(t, rules(t, perAddress), nil)
	s.between(func(inner counter.Store) counter.Store { store.Store = inner; return store })
	s.Service.options.RequestsMax = 6 // requests with equal descriptors may use at most half of the places
	code := pb.RateLimitResponse_OK
	asks := func(domain string) (pb.RateLimitResponse_Code, error) {
		r, err := s.RateLimitServiceClient.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: domain,
			Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1")}})
		return r.GetOverallCode(), err
	}
	ask := func(domain string) error {
		_, err := asks(domain)
		return err
	}
	ended := make(chan error, 3)
	for range 3 {
		go func() { ended <- ask("shop") }()
	}
	eventually.Until(t, 10*time.Second, "they are under way", func() bool { return s.under.all.Load() == 3 })
	for domain, want := range map[string]pb.RateLimitResponse_Code{"shop": pb.RateLimitResponse_OVER_LIMIT,
		"another": pb.RateLimitResponse_OK} { // no policy covers the second domain
		var err error
		if code, err = asks(domain); err != nil || code != want {
			t.Errorf("one more, of domain %s: %v, %v", domain, code, err)
		}
	}
	close(store.answer)
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := ask("shop"); err != nil || s.busy != 1 || s.under.all.Load() != 0 {
		t.Errorf("%v, %d are told of, %d under way", err, s.busy, s.under.all.Load())
	}
}

// TestABoundIsThereWithoutBeingSaid: without an option, the default bound applies.
func TestABoundIsThereWithoutBeingSaid(t *testing.T) {
	if got := New(Options{}).options.RequestsMax; got != RequestsMaxDefault {
		t.Errorf("%d", got)
	}
}

// TestTheAnswerComesBeforeEnvoyGivesUp: the store has half of Envoy's remaining time, and is not
// called if too little is left. Unknown tokens have most of that half, within bounds.
func TestTheAnswerComesBeforeEnvoyGivesUp(t *testing.T) {
	for _, c := range []struct {
		left, most time.Duration // 0 means that Envoy sends no deadline
		verify     time.Duration
		timely     bool
	}{{0, waitDefault, verifyMax, true}, {time.Second, 500 * time.Millisecond, verifyMax, true}, {100 * time.Millisecond, 50 * time.Millisecond, 40 * time.Millisecond, true},
		{20 * time.Millisecond, 10 * time.Millisecond, verifyMin, true}, {time.Millisecond, 0, 0, false}, {-time.Second, 0, 0, false}} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if c.left != 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.left)
				defer cancel()
			}
			until, cancel, verify, timely := withHalfDeadline(ctx)
			defer cancel()
			deadline, ok := until.Deadline()
			if timely != c.timely || timely && (!ok || time.Until(deadline) != c.most) || time.Duration(verify)*time.Microsecond != c.verify {
				t.Errorf("%v left: %v until %v, want %v; %d µs for tokens, want %v", c.left, timely, time.Until(deadline), c.most, verify, c.verify)
			}
		})
	}
	s := serve(t, rules(t, perAddress), nil)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	r, err := s.Service.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1")}})
	if err != nil || r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT || s.busy != 1 {
		t.Errorf("answered %v, %v", r, err)
	}
}

// TestABusyMachineAdmitsNobody: a request is denied if its deadline passes before the store is
// asked. No such request calls the store, so on_error must not decide.
func TestABusyMachineAdmitsNobody(t *testing.T) {
	rs := rules(t, perAddress)
	s := serve(t, rs, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	s.options.Ruleset = func(string) (*core.Ruleset, bool) {
		<-ctx.Done() // like a process that gets no processor time until then
		return rs, true
	}
	r, err := s.Service.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1")}})
	if err != nil || r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT || s.busy != 1 || s.failed() != 0 {
		t.Errorf("answered %v, %v; busy %d, failed calls %d", r, err, s.busy, s.failed())
	}
}

// TestOneSourceLeavesPlaces: requests of one address leave places for others, even if each of them
// has a different name in its descriptors. The same holds for requests with the same descriptors
// and without an address.
func TestOneSourceLeavesPlaces(t *testing.T) {
	for _, c := range []struct {
		greedy func(i int) []string // the entries of request i
		other  []string
	}{
		{func(int) []string { return []string{"remote_address", "192.0.2.1"} }, []string{"remote_address", "192.0.2.2"}},
		{func(i int) []string { return []string{"x-id", strconv.Itoa(i), "remote_address", "192.0.2.1"} }, []string{"x-id", "0", "remote_address", "192.0.2.2"}},
		{func(i int) []string { return []string{"remote_address", "2001:db8::" + strconv.Itoa(i)} }, []string{"remote_address", "2001:db8:0:1::1"}},
		{func(int) []string { return []string{"x-id", "1"} }, []string{"x-id", "2"}},
	} {
		of := func(entries []string) *pb.RateLimitRequest {
			return &pb.RateLimitRequest{Descriptors: []*ratelimit.RateLimitDescriptor{descriptor(entries...)}}
		}
		s := New(Options{})
		for s.under.sourceOf(of(c.other)) == s.under.sourceOf(of(c.greedy(0))) { // they share a count by chance
			s = New(Options{})
		}
		taken := 0
		for i := range 100 {
			if from, ok := s.under.take(of(c.greedy(i)), 20); ok {
				taken++
			} else {
				s.under.leave(from)
			}
		}
		if _, ok := s.under.take(of(c.other), 20); taken != 10 || !ok {
			t.Errorf("requests with %v have %d of 20 places, one with %v has one: %v", c.greedy(0), taken, c.other, ok)
		}
	}
}

// patientVerifier records how much time it has for a token.
type patientVerifier struct{ left counter.Micros }

func (*patientVerifier) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialAbsent
}

func (v *patientVerifier) VerifyFor(asker *policy.Asker, _ string) (*policy.Identity, policy.CredentialState) {
	v.left = *asker.Left
	return nil, policy.CredentialInvalid
}

// TestAnUnknownTokenHasTheTimeThatEnvoyGives: on a busy machine, a valid token that is not
// remembered waits for a processor, and is denied only if Envoy's deadline leaves too little time.
func TestAnUnknownTokenHasTheTimeThatEnvoyGives(t *testing.T) {
	v := new(patientVerifier)
	rs, err := core.Compile(policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}},
		Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: v, From: []policy.CredentialSource{{Kind: policy.FromBearer}}}, {}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err = serve(t, rs, nil).Service.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("authorization", "Bearer token")}})
	if got := time.Duration(v.left) * time.Microsecond; err != nil || got != verifyMax {
		t.Errorf("a token has %v, want %v; %v", got, verifyMax, err)
	}
}
