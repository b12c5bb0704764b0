// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	bridging "github.com/penstock/penstock/internal/bridge"
	"github.com/penstock/penstock/internal/conformance"
	"github.com/penstock/penstock/internal/fallback"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
)

// envoyFront is an Envoy with a site for each story, and a bridge for each in this process, so that the store can be away
// and tells what was settled.
type envoyFront struct {
	store *conformance.Store
	sites map[string]*site // by the story's place
}

// newEnvoyFront starts Envoy and the bridges, and waits until every worker has every policy.
func newEnvoyFront(t testing.TB, stories []conformance.Story) *envoyFront {
	t.Helper()
	kept, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	local, err := memstore.New(memstore.Options{}) // stands in for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = kept.Close()
		_ = local.Close()
	})
	f := &envoyFront{store: &conformance.Store{Of: kept}, sites: map[string]*site{}}
	var sites []*site
	var told []*conformance.Story
	for i := range stories {
		s := &stories[i]
		if _, excepted := s.Except["envoy"]; excepted {
			continue
		}
		f.sites[s.Place] = &site{set: "deadline: 5s\n"} // this machine also runs the load
		sites, told = append(sites, f.sites[s.Place]), append(told, s)
	}
	e := startEnvoy(t, wasm(t), conformance.Upstream(), sites...)
	set := conformance.Setting{Now: time.Now(), KeySetURL: conformance.ServeKeySet(t),
		Attrs: map[string]string{"query": "request.query", "protocol": "request.protocol"}}
	for _, s := range told {
		document, err := policy.Load(s.Write(t, t.TempDir(), set)) // it need not be followed
		if err != nil {
			t.Fatal(err)
		}
		b, err := bridging.New(bridging.Options{Policy: document, Store: f.store, Shared: true,
			Fallback: fallback.Options{Local: local}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		serveAt(t, "unix", f.sites[s.Place].bridge, b.Handler())
	}
	await.Until(t, time.Minute, "every worker has every policy", func() bool {
		return e.counter("penstock.policy_loaded") >= envoyVMs*len(sites)
	})
	return f
}

// envoyVMs is how many times the filter is there: in two workers, and in the main thread, which asks for policies too.
const envoyVMs = 3

func (f *envoyFront) begin(_ testing.TB, s *conformance.Story) conformance.Asker {
	address := f.sites[s.Place].address
	f.store.SetAway(s.Away)
	return func(t testing.TB, e *conformance.Exchange) conformance.Answer {
		settlements, before := f.store.Settled()
		answer := e.Request.Send(t, address)
		if e.For("envoy").Settled != nil && answer.Passed {
			await.Until(t, 10*time.Second, "something is settled", func() bool {
				calls, _ := f.store.Settled()
				return calls > settlements
			})
		}
		_, after := f.store.Settled()
		answer.Settled, answer.Counted = after-before, true
		return answer
	}
}

// TestConformanceOfEnvoy tells the corpus to an Envoy.
func TestConformanceOfEnvoy(t *testing.T) {
	stories, wrong := conformance.Load(t), conformance.LoadWrong(t)
	all := slices.Concat(stories, wrong)
	f := newEnvoyFront(t, all)
	conformance.Run(t, "envoy", all[:len(stories)], f.begin)
	conformance.RunWrong(t, "envoy", all[len(stories):], f.begin)
}
