// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// rulesLatency measures a whole decision over Redis, from the request's attributes to the headers,
// under 1,000 rules. Three of the rules match.
func rulesLatency(o options, s *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	_, address, err := b.redis()
	if err != nil {
		return err
	}
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + address, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	rules, err := manyRules(1_000)
	if err != nil {
		return err
	}
	spans := make([][]time.Duration, callers)
	var wait sync.WaitGroup
	var failed error
	var once sync.Once
	begin := time.Now()
	for caller := range callers {
		wait.Go(func() {
			var plan core.Plan
			var writer response.Writer
			for turn := 0; time.Since(begin) < 2*o.round; turn++ {
				t := time.Now()
				if err := oneCheck(&plan, &writer, rules, store, caller, turn); err != nil {
					once.Do(func() { failed = err })
					return
				}
				spans[caller] = append(spans[caller], time.Since(t))
			}
		})
	}
	wait.Wait()
	if failed != nil {
		return failed
	}
	all := slices.Concat(spans...)
	slices.Sort(all)
	s.table("p50", "p95", "p99", "checks/s")
	s.row(fmt.Sprint(percentile(all, 50)), fmt.Sprint(percentile(all, 95)), fmt.Sprint(percentile(all, 99)), thousands(float64(len(all))/(2*o.round).Seconds()))
	return nil
}

func oneCheck(plan *core.Plan, writer *response.Writer, rules *core.Ruleset, store counter.Store, caller, turn int) error {
	plan.Reset()
	plan.Add(rules, request{netip.AddrFrom4([4]byte{192, 0, byte(caller), byte(turn)})})
	if n := len(plan.Checks()); n != 3 {
		return fmt.Errorf("%d checks instead of 3", n)
	}
	if err := store.Take(context.Background(), plan.Checks(), plan.Results()); err != nil {
		return err
	}
	decision := plan.Decide()
	if fields := writer.Headers(plan, &decision); fields[response.FieldLimit] == "" {
		return fmt.Errorf("no headers in %+v", decision)
	}
	return nil
}

// manyRules returns n rules: one for every request, one for /api/*, and n-2 that match one endpoint
// each.
func manyRules(n int) (*core.Ruleset, error) {
	limit, err := counter.NewLimit(counter.TokenBucket, 1_000_000_000, counter.Minute, 0)
	if err != nil {
		return nil, err
	}
	source := policy.Policy{Name: "bench", Rules: []policy.Rule{
		{Name: "everything", Limits: []counter.Limit{limit}},
		{Name: "api", Match: policy.Match{Path: []string{"/api/*"}}, Limits: []counter.Limit{limit}},
	}}
	for i := range n - 2 {
		source.Rules = append(source.Rules, policy.Rule{Name: fmt.Sprintf("endpoint-%d", i),
			Match: policy.Match{Path: []string{fmt.Sprintf("/api/v1/resource%d/items", 500+i)}}, Limits: []counter.Limit{limit}})
	}
	return core.Compile(source)
}

// request is a request for one of the endpoints.
type request struct{ peer netip.Addr }

func (request) Path() string                 { return "/api/v1/resource500/items" }
func (request) Method() string               { return "GET" }
func (request) Host() string                 { return "example.com" }
func (request) Header(string) (string, bool) { return "", false }
func (r request) Peer() netip.Addr           { return r.peer }
func (r request) Query() string              { return "" }
func (r request) Remote() netip.Addr         { return r.peer }
func (r request) Now() counter.Micros        { return 0 }
func (request) Attr(string) (string, bool)   { return "", false }
