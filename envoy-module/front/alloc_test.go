// SPDX-License-Identifier: Apache-2.0

package front

import (
	"testing"

	"github.com/penstock/penstock/internal/test/racescale"
)

// allocsMax is the number of allocations of a request that memory decides: one for its texts and one
// for its fields.
const allocsMax = 2

func TestADecisionInMemoryAllocatesLittle(t *testing.T) {
	f := opened(t, "name: shop\nrules: [{name: all, limit: 1000000000/31d}]\n")
	headers, b := request("/api/items", "user-agent", "curl/8", "accept", "*/*"), newBell()
	n := testing.AllocsPerRun(racescale.Fewer(10_000), func() {
		s := f.NewStream()
		s.Headers = append(s.Headers, headers...)
		if v := s.Decide(client, nobody{}, b); v != Continue {
			t.Fatalf("verdict %d", v)
		}
		s.Release()
	})
	if n > allocsMax && racescale.Fewer(2) == 2 { // the race detector empties pools at random
		t.Errorf("%v allocations a request, want at most %d", n, allocsMax)
	}
}

func BenchmarkDecideInMemory(b *testing.B) {
	f := opened(b, "name: shop\nrules: [{name: all, limit: 1000000000/31d}]\n")
	headers, bell := request("/api/items", "user-agent", "curl/8", "accept", "*/*"), newBell()
	b.ReportAllocs()
	for b.Loop() {
		s := f.NewStream()
		s.Headers = append(s.Headers, headers...)
		s.Decide(client, nobody{}, bell)
		s.Release()
	}
}
