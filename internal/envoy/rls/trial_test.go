// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestTrialsChargePastUsage: at the end of a stream, a candidate charges usage beyond its limit, as
// the policy in force does. So it denies the client's next request.
func TestTrialsChargePastUsage(t *testing.T) {
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(strings.Replace(sharedAndOwn, "name: shop", "name: shop.shadow", 1)))
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	candidate, err := live.Open(live.Options{Source: live.Fixed(d), Verifiers: live.NewVerifiers(quiet), Metrics: metrics.New(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s, total := serve(t, rules(t, sharedAndOwn), nil), shadow.NewTotal()
	r := shadow.Start(shadow.Options{Store: s.options.Store, Total: total})
	defer r.Stop()
	s.options.Trial = func(denied bool) *shadow.Trial { return r.Begin(candidate.Current(), denied) }
	for trials, c := range []struct {
		mark string
		hits uint64
	}{{ended, 12}, {"ended=,", 1}} {
		s.mark = c.mark
		s.checkAnswer(false, hits(descriptor("remote_address", "192.0.2.1"), c.hits, false))
		eventually.Until(t, 10*time.Second, "the candidate has denied", func() bool {
			return s.sum(total.WithLabelValues("shop.shadow", "refused", "refused")) == trials+1
		})
	}
}
