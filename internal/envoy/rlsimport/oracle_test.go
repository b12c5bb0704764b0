// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/rls"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// importedService is a rate limit service with an imported policy and the test's clock.
type importedService struct {
	testing.TB
	*rls.Service
	// ctx has a deadline, because without one the service would decide by on_error after 200 ms.
	ctx   context.Context
	text  string
	notes policy.Problems
	now   counter.Micros
}

func importAll(t testing.TB, configurations ...string) *importedService {
	t.Helper()
	var files []File
	for i, text := range configurations {
		files = append(files, File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	text, notes, err := Import("envoy", files, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, configurations)
	}
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, text)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	s := &importedService{TB: t, ctx: eventually.Context(t), text: string(text), notes: notes, now: 1_700_000_000 * counter.Second}
	clock := func() counter.Micros { return s.now }
	store, err := memstore.New(memstore.Options{Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s.Service = rls.New(rls.Options{Store: store, Now: clock, Ruleset: func(domain string) (*core.Ruleset, bool) {
		return rules, domain == "envoy" || strings.Contains(s.text, "envoy.domain: "+quoteScalar(domain)+"\n")
	}})
	return s
}

func (s *importedService) ask(domain string, hits int64, descriptors ...[][2]string) *pb.RateLimitResponse {
	s.Helper()
	request := &pb.RateLimitRequest{Domain: domain, HitsAddend: uint32(hits)}
	for _, pairs := range descriptors {
		d := &ratelimit.RateLimitDescriptor{}
		for _, pair := range pairs {
			d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: pair[0], Value: pair[1]})
		}
		request.Descriptors = append(request.Descriptors, d)
	}
	response, err := s.ShouldRateLimit(s.ctx, request)
	if err != nil {
		s.Fatal(err)
	}
	return response
}

// TestImportedDecidesAlike compares the imported policy with the model, for random configurations,
// requests and times.
func TestImportedDecidesAlike(t *testing.T) {
	rnd := maker{rand.New(rand.NewPCG(seed.First(t), 1))}
	over, limited, configurations := 0, 0, max(60, racescale.Fewer(300))
	for range configurations {
		tree := rnd.nodes(1 + rnd.IntN(3))
		text := "domain: d\ndescriptors:\n" + configuration(tree, "  ")
		s, m := importAll(t, text), &model{tree: tree, counters: map[string]int64{}}
		for range 100 {
			descriptors, hits := rnd.request(), int64(1+rnd.IntN(3))
			want, verdicts := m.ask(int64(s.now/counter.Second), descriptors, hits)
			got := s.ask("d", hits, descriptors...)
			if (got.OverallCode == pb.RateLimitResponse_OVER_LIMIT) != want {
				t.Fatalf("%v, %d hits: over %t, want %t\n%v\n%s\n%s", descriptors, hits, !want, want, got, text, s.text)
			}
			if why := compareAnswers(got, verdicts); why != "" {
				t.Fatalf("%v, %d hits: %s\n%v\n%s\n%s", descriptors, hits, why, got, text, s.text)
			}
			for _, v := range verdicts {
				if v.limit != nil {
					limited++
				}
			}
			if want {
				over++
			}
			s.now += counter.Micros(rnd.IntN(1 << rnd.IntN(32)))
		}
	}
	if over < configurations || limited < 8*configurations {
		t.Errorf("%d requests over a limit, %d descriptors with one", over, limited)
	}
}

// compareAnswers compares the answers for each descriptor. A limit of 0 denies without a store
// call, so the other limits' counters are then unknown.
func compareAnswers(got *pb.RateLimitResponse, verdicts []verdict) string {
	for _, v := range verdicts {
		if v.limit != nil && v.limit.count == 0 && !v.limit.shadow {
			return ""
		}
	}
	for i, v := range verdicts {
		status := got.Statuses[i]
		if (status.Code == pb.RateLimitResponse_OVER_LIMIT) != v.over {
			return fmt.Sprintf("descriptor %d: %v, want over %t", i, status.Code, v.over)
		}
		if (status.CurrentLimit != nil) != (v.limit != nil && !v.limit.shadow) && (v.limit == nil || v.limit.count > 0) &&
			(v.limit == nil || !v.limit.shadow) {
			return fmt.Sprintf("descriptor %d: limit %v, want %v", i, status.CurrentLimit, v.limit)
		}
		if status.CurrentLimit == nil || v.limit.shadow {
			continue
		}
		if int64(status.CurrentLimit.RequestsPerUnit) != v.limit.count || int64(status.LimitRemaining) != v.remaining {
			return fmt.Sprintf("descriptor %d: %d left of %d, want %d of %d", i, status.LimitRemaining,
				status.CurrentLimit.RequestsPerUnit, v.remaining, v.limit.count)
		}
		if unit := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(v.limit.unit)]; int32(status.CurrentLimit.Unit) != unit {
			return fmt.Sprintf("descriptor %d: unit %v, want %s", i, status.CurrentLimit.Unit, v.limit.unit)
		}
	}
	return ""
}

// TestImportedDecidesAsTheServiceItself compares the imported policy with a model that charges
// counters that deny, like envoyproxy/ratelimit. For requests with one descriptor and one hit,
// which are the most common, this makes no difference. TestModelDecidesAsTheRealService shows that
// the model matches the service.
func TestImportedDecidesAsTheServiceItself(t *testing.T) {
	rnd := maker{rand.New(rand.NewPCG(seed.First(t), 2))}
	over, configurations := 0, max(60, racescale.Fewer(200))
	for range configurations {
		tree := rnd.nodes(1 + rnd.IntN(3))
		text := "domain: d\ndescriptors:\n" + configuration(tree, "  ")
		s, m := importAll(t, text), &model{tree: tree, counters: map[string]int64{}, always: true}
		for range 300 {
			descriptors := rnd.request()[:1]
			want, _ := m.ask(int64(s.now/counter.Second), descriptors, 1)
			if got := s.ask("d", 1, descriptors...); (got.OverallCode == pb.RateLimitResponse_OVER_LIMIT) != want {
				t.Fatalf("%v: over %t, want %t\n%v\n%s\n%s", descriptors, !want, want, got, text, s.text)
			}
			if want {
				over++
			}
			s.now += counter.Micros(rnd.IntN(1 << rnd.IntN(32)))
		}
	}
	if over < configurations {
		t.Errorf("%d requests over a limit", over)
	}
}
