// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestTheRealCostCountsWhileRedisIsFrozen: while Redis does not answer, the node decides. The cost
// that the upstream reports is charged to the node's own share, and to Redis as soon as Redis
// answers again.
func TestTheRealCostCountsWhileRedisIsFrozen(t *testing.T) {
	redis := redistest.Start(t)
	s := start(t, `{
		penstock {
			store redis `+redis.URL()+` {
				timeout 250ms
			}
		}
	}
	:PORT {
		penstock {
			name shop
			rule probe {
				match path /probe
				limit 100000/30d
			}
			rule dear {
				match path /dear
				limit 1000/30d fixed_window
				cost_after header X-Cost {
					estimate 10
				}
			}
			rule cheap {
				match path /cheap
				limit 1000/30d fixed_window
				cost_after header X-Cost {
					estimate 100
				}
			}
		}
		reverse_proxy `+upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Cost", map[string]string{"/dear": "400", "/cheap": "1"}[r.URL.Path])
	})+`
	}`)
	failures := func() int { return s.sumCounted(`penstock_store_errors_total{`, `"breaker_open"`) }
	settled := func() int { return s.sumCounted(`penstock_settlements_total{`, "") }
	waitUntil(t, "Redis decides", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") != "" })
	before := failures()
	redis.Pause()
	waitUntil(t, "Redis is away", func() bool { s.get("/probe"); return failures() > before })
	admitted := func(path string) (n int) {
		for range 20 {
			was := settled()
			if s.get(path).StatusCode == http.StatusOK {
				n++
				waitUntil(t, "the answer is settled", func() bool { return settled() > was })
			}
		}
		return n
	}
	if n := admitted("/dear"); n != 3 {
		t.Errorf("%d requests of 400 units are admitted of 1000", n)
	}
	if n := admitted("/cheap"); n != 20 {
		t.Errorf("%d requests of 1 unit are admitted", n)
	}
	redis.Resume()
	waitUntil(t, "Redis decides again", func() bool { return s.get("/probe").Header.Get("X-RateLimit-Limit") != "" })
	equal(t, "the expensive one", fmt.Sprint(s.get("/dear").StatusCode), "429")
	s.get("/cheap").wantField(t, "X-RateLimit-Remaining", "880") // 20 units are used, and 100 are reserved
}

// sumCounted returns the sum of the series that begin with one text and contain another.
func (s *server) sumCounted(begin, text string) (sum int) {
	s.t.Helper()
	for line := range strings.Lines(s.metrics()) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(line, begin) || !strings.Contains(series, text) {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(value, &n); err != nil {
			s.t.Fatal(err)
		}
		sum += int(n)
	}
	return sum
}
