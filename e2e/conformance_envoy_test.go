// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"
	"time"

	bridging "github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/conformance"
	"github.com/penstock/penstock/internal/test/eventually"
)

// envoyFront is an Envoy with a site for each story. The bridges run in this process, so that a
// test can make the store unavailable and count settlements.
type envoyFront struct {
	store *conformance.Store
	sites map[string]*site // by the file and line of the story
}

// newEnvoyFront starts Envoy and the bridges, and waits until every worker has every policy.
func newEnvoyFront(t testing.TB, stories []conformance.Story) *envoyFront {
	t.Helper()
	kept, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	local, err := memstore.New(memstore.Options{}) // the fallback while the store is unavailable
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = kept.Close()
		_ = local.Close()
	})
	f := &envoyFront{store: &conformance.Store{Of: kept}, sites: map[string]*site{}}
	var sites []*site
	var reported []*conformance.Story
	for i := range stories {
		s := &stories[i]
		if _, excepted := s.Except["envoy"]; excepted {
			continue
		}
		// The deadline is long, because the tests keep the machine busy. The filter polls seldom,
		// because there are hundreds of sites.
		f.sites[s.Place] = &site{set: "deadline: 5s\npoll: 3s\n"}
		sites, reported = append(sites, f.sites[s.Place]), append(reported, s)
	}
	e := useEnvoy(t, conformance.Upstream(), sites...)
	set := conformance.Setting{Now: time.Now(), KeySetURL: conformance.ServeKeySet(t),
		Attrs: map[string]string{"query": "request.query", "protocol": "request.protocol"}}
	for _, s := range reported {
		document, err := policyfile.Load(s.Write(t, t.TempDir(), set)) // the file does not change
		if err != nil {
			t.Fatal(err)
		}
		b, err := bridging.New(bridging.Options{Policy: document, Shared: true,
			Store: fallback.New(f.store, fallback.Options{Counts: fallback.NewCounts(local)}), Corrections: f.store})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		serveAt(t, "unix", f.sites[s.Place].bridge, b.Handler())
	}
	eventually.Until(t, time.Minute, "every worker has every policy", func() bool {
		return e.counter("penstock.policy_loaded") >= envoyVMs*len(sites)
	})
	return f
}

// envoyVMs is the number of instances of the filter: one in each of two workers, and one in the
// main thread, which also polls for policies.
const envoyVMs = 3

func (f *envoyFront) begin(_ testing.TB, s *conformance.Story) conformance.Asker {
	address := f.sites[s.Place].address
	f.store.SetAway(s.Away)
	return func(t testing.TB, e *conformance.Exchange) conformance.Answer {
		settlements, before := f.store.Settled()
		answer := e.Request.Send(t, address)
		if e.For("envoy").Settled != nil && answer.Passed {
			eventually.Until(t, 10*time.Second, "something is settled", func() bool {
				calls, _ := f.store.Settled()
				return calls > settlements
			})
		}
		_, after := f.store.Settled()
		answer.Settled, answer.Counted = after-before, true
		return answer
	}
}

// TestConformanceOfEnvoy runs the conformance corpus against Envoy.
func TestConformanceOfEnvoy(t *testing.T) {
	t.Parallel()
	stories, wrong := conformance.Load(t), conformance.LoadWrong(t)
	all := slices.Concat(stories, wrong)
	f := newEnvoyFront(t, all)
	conformance.Run(t, "envoy", all[:len(stories)], f.begin)
	conformance.RunWrong(t, "envoy", all[len(stories):], f.begin)
}
