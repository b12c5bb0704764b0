// SPDX-License-Identifier: Apache-2.0

package front

import (
	"runtime"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
)

// hot is a limit that is so high that no test reaches it.
const hot = "rules: [{name: all, limit: 1000000000/31d}]\n"

// TestADecisionInTheHookAllocatesNothing counts the allocations of requests that are decided within
// the hook: by the store in memory, by units in hand, or by a remembered denial.
func TestADecisionInTheHookAllocatesNothing(t *testing.T) {
	redis := redistest.Start(t)
	over := "store: {type: redis, url: \"" + redis.URL() + "\", timeout: 10s}\n"
	for _, c := range []struct {
		what, settings string
		want           Verdict
		most           float64
	}{
		{"memory", "name: shop\n" + hot, Continue, 0},
		{"memory, by header", "name: shop\nidentify: [{header: {name: User-Agent, unverified: true}}]\n" + hot, Continue, 0},
		{"memory, three limits", "name: shop\n" + strings.Replace(hot, "1000000000/31d", "[1000000000/31d, 100000000/1d, 10000000/1h]", 1), Continue, 0},
		{"units in hand", "name: leased\nlease: auto\n" + hot + over, Continue, 0},
		{"a remembered denial", "name: denied\nrules: [{name: all, limit: 1/31d}]\n" + over, Respond, deniedAllocs},
	} {
		f := openFront(t, c.settings)
		for range 2000 { // until there are units in hand
			ask(t, f, request("/api/items", "user-agent", "curl/8"))
		}
		headers, b := request("/api/items", "user-agent", "curl/8", "accept", "*/*"), newBell()
		asked := 0
		n := testing.AllocsPerRun(racescale.Fewer(10_000), func() {
			s := f.NewStream()
			s.Headers = append(s.Headers, headers...)
			switch s.Decide(client, emptyHost{}, b) {
			case c.want:
			case Wait:
				asked++
				<-b.rung
			default:
				t.Fatalf("%s: another verdict", c.what)
			}
			s.Release()
		})
		t.Logf("%s: %v allocations, %d requests asked the store", c.what, n, asked)
		if n > c.most && racescale.Fewer(2) == 2 { // the race detector empties pools at random
			t.Errorf("%s: %v allocations a request, want at most %v", c.what, n, c.most)
		}
	}
}

// TestAResponseAllocatesNothing counts the allocations of responses whose status or header decides
// the charge.
func TestAResponseAllocatesNothing(t *testing.T) {
	for _, c := range []struct{ what, words string }{
		{"the status", "count_if: {status: 200}"},
		{"a refund", "refund_on: {status: 404}"},
		{"a header", "cost_after: {estimate: 20, header: X-Cost, default: 1}"},
		{"a header that is missing", "cost_after: {estimate: 20, header: X-Units, default: 1}"},
	} {
		f := openFront(t, "name: shop\nrules: [{name: all, limit: 1000000000/31d, "+c.words+"}]\n")
		asked, b := request("/api/items"), newBell()
		answered := [][2]string{{":status", "200"}, {"content-type", "text/plain"}, {"content-length", "2"}, {"x-cost", "12"}}
		respond := func() {
			s := f.NewStream()
			s.Headers = append(s.Headers, asked...)
			if v := s.Decide(client, emptyHost{}, b); v != Continue {
				t.Fatalf("%s: verdict %d", c.what, v)
			}
			settling := s.Settling()
			s.Release()
			settling.Headers = append(settling.Headers[:0], answered...)
			fields, listens := settling.Begin(&Beginning{Headers: settling.Headers, Complete: true, Details: "via_upstream"})
			if fields.Empty() || listens {
				t.Fatalf("%s: fields %v, listens %t", c.what, fields, listens)
			}
			settling.End()
			for settling.holds.Load() > 0 { // the settlement is sent in the background
				runtime.Gosched()
			}
		}
		for range 100 { // until all pools are filled
			respond()
		}
		n := testing.AllocsPerRun(racescale.Fewer(10_000), respond)
		t.Logf("%s: %v allocations", c.what, n)
		if n > 0 && racescale.Fewer(2) == 2 { // the race detector empties pools at random
			t.Errorf("%s: %v allocations a response, want none", c.what, n)
		}
	}
}

// deniedAllocs is the number of allocations of the response to a denied request.
const deniedAllocs = 0

func BenchmarkDecideInMemory(b *testing.B) {
	f := openFront(b, "name: shop\nrules: [{name: all, limit: 1000000000/31d}]\n")
	headers, bell := request("/api/items", "user-agent", "curl/8", "accept", "*/*"), newBell()
	b.ReportAllocs()
	for b.Loop() {
		s := f.NewStream()
		s.Headers = append(s.Headers, headers...)
		s.Decide(client, emptyHost{}, bell)
		s.Release()
	}
}
