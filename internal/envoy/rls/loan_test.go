// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/loantest"
)

// lent is a policy that gives each client two units in the region eu.
const lent = `
name: shop
regions: {us: 9, eu: 1}
across: lease
rules: [{ name: all, limit: 20/31d fixed_window }]
`

// lendingService is a rate limit service in simulated time. The test acts as the agent of the
// service's region.
type lendingService struct {
	*testing.T
	*Service
	region *loantest.Region
}

// withRegion runs a test in a region that has two units for each client. The client 192.0.2.1 has
// used both units.
func withRegion(t *testing.T, story func(*lendingService)) {
	t.Helper()
	withRegionUnder(t, lent, story)
}

// withRegionUnder is withRegion with another policy.
func withRegionUnder(t *testing.T, policy string, story func(*lendingService)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(policy))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.InRegion("eu"); err != nil {
			t.Fatal(err)
		}
		rs, err := d.Compile()
		if err != nil {
			t.Fatal(err)
		}
		l := &lendingService{T: t, region: loantest.New(t)}
		l.Service = New(Options{Store: l.region, Loans: l.region.Store, Ruleset: func(string) (*core.Ruleset, bool) { return rs, true }})
		for range 2 {
			if a := l.send(t.Context(), time.Second)(); a.code != pb.RateLimitResponse_OK || a.err != nil {
				t.Fatalf("the client has fewer than two units: %+v", a)
			}
		}
		story(l)
	})
}

// sentAnswer is the answer to a request, and the time until it arrived.
type sentAnswer struct {
	code  pb.RateLimitResponse_Code
	err   error
	after time.Duration
}

// lendingService.send sends a request for which Envoy leaves the given time. A time of 0 means no
// deadline. The returned function waits for the answer.
func (l *lendingService) send(ctx context.Context, left time.Duration) func() sentAnswer {
	begin, end := time.Now(), make(chan sentAnswer, 1)
	cancel := func() {}
	if left != 0 {
		ctx, cancel = context.WithTimeout(ctx, left)
	}
	go func() {
		defer cancel()
		r, err := l.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop",
			Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1")}})
		end <- sentAnswer{r.GetOverallCode(), err, time.Since(begin)}
	}()
	synctest.Wait()
	return func() sentAnswer { return <-end }
}

// TestABurstWaitsForALoan: requests wait for units of other regions, in the order of their arrival.
func TestABurstWaitsForALoan(t *testing.T) {
	withRegion(t, func(l *lendingService) {
		first, second := l.send(l.Context(), time.Second), l.send(l.Context(), time.Second)
		q := <-l.region.Questions
		asked := time.Now()
		<-time.After(200 * time.Millisecond)
		l.region.Lend(&q, 1)
		a := first()
		l.region.Refuse(&q)
		if b := second(); a.code != pb.RateLimitResponse_OK || b.code != pb.RateLimitResponse_OVER_LIMIT || time.Since(asked) != 200*time.Millisecond {
			l.Errorf("answered %+v and %+v after %v", a, b, time.Since(asked))
		}
		if n := l.region.Taken(); n != 3 {
			l.Errorf("%d units are charged", n)
		}
	})
}

// TestALoanIsAwaitedWithinEnvoysTime: a request waits for at most a second, and for at most three
// quarters of Envoy's time. The rest of that time is for the answer. With too little time, the
// request does not wait.
func TestALoanIsAwaitedWithinEnvoysTime(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{0: time.Second, 10 * time.Second: time.Second, time.Second: 750 * time.Millisecond,
		loanTimeMin: 150 * time.Millisecond, loanTimeMin - time.Millisecond: 0, 20 * time.Millisecond: 0} {
		withRegion(t, func(l *lendingService) {
			if a := l.send(l.Context(), left)(); a.code != pb.RateLimitResponse_OVER_LIMIT || a.err != nil || a.after != want {
				l.Errorf("with %v: %+v, want a denial after %v", left, a, want)
			}
		})
	}
}

// TestACallerThatLeavesIsNotCharged: if a caller leaves, units that arrive later are left to other
// requests.
func TestACallerThatLeavesIsNotCharged(t *testing.T) {
	withRegion(t, func(l *lendingService) {
		ctx, leave := context.WithCancel(l.Context())
		gone, other := l.send(ctx, time.Second), l.send(l.Context(), time.Second)
		q := <-l.region.Questions
		leave()
		if a := gone(); status.Code(a.err) != codes.Canceled {
			l.Errorf("the caller that has left: %+v", a)
		}
		l.region.Lend(&q, 1)
		if a := other(); a.code != pb.RateLimitResponse_OK || l.region.Taken() != 3 || l.under.all.Load() != 0 {
			l.Errorf("the other one: %+v, and %d units are charged", a, l.region.Taken())
		}
	})
}

// TestUsageIsReportedAfterAWait: a request waits for units for one descriptor, and reports usage
// with another. The usage is recorded, although the deadline of the first call to the store has
// passed.
func TestUsageIsReportedAfterAWait(t *testing.T) {
	withRegion(t, func(l *lendingService) {
		ctx, cancel := context.WithTimeout(markEnded(l.Context()), time.Second)
		defer cancel()
		used := descriptor("remote_address", "192.0.2.2")
		used.HitsAddend = wrapperspb.UInt64(2)
		r, err := l.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop",
			Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1"), used}})
		if err != nil || r.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT || l.region.Taken() != 2+2 {
			l.Errorf("answered %v, %v, and %d units are charged", r, err, l.region.Taken())
		}
	})
}
