// SPDX-License-Identifier: Apache-2.0

package front

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestAClientThatLeavesWaitsForNoLoan tests that a request which waits for units of other regions
// stops waiting when its client leaves, and is not charged.
func TestAClientThatLeavesWaitsForNoLoan(t *testing.T) {
	redis := redistest.Start(t)
	// This test acts as an agent that receives the questions of the front, and never answers.
	agent := redis.Messages(regionstore.Channel)
	f := openFront(t, "name: shop\nregion: eu\nregions: {us: 9, eu: 1}\nacross: lease\nrules: [{name: all, limit: 20/31d fixed_window}]\n"+
		"store: {type: redis, url: \""+redis.URL()+"\", timeout: 10s}\n")
	gone := func() float64 {
		var m dto.Metric
		if err := f.process.metrics.LoanWaits.WithLabelValues(string(regionstore.EndGone)).Write(&m); err != nil {
			t.Error(err)
		}
		return m.GetCounter().GetValue()
	}
	for range 2 {
		if v, _, _ := ask(t, f, request("/")); v != Continue {
			t.Fatalf("verdict %d", v)
		}
	}
	eventually.Until(t, time.Minute, "a client leaves while its request waits", func() bool {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/")...)
		if v := s.Decide(client, emptyHost{}, b); v != Wait {
			t.Fatalf("verdict %d", v)
		}
		select {
		case <-agent:
			s.Gone()
		case <-b.rung: // the store does not listen for answers yet, so the request did not wait
			s.Release()
		}
		return gone() > 0
	})
}
