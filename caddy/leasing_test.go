// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestLeasesGoBackWithTheirStore: the app's lease setting applies to the rules of its sites. A
// reload that closes the store returns unused leases. In the end, Redis has counted exactly the
// admitted requests.
func TestLeasesGoBackWithTheirStore(t *testing.T) {
	const limit = 1_000_000
	redis := redistest.Start(t)
	over := func(store string) string {
		return `{
			penstock {
				name shop
				store ` + store + `
				lease auto
				on_error deny
			}
		}
		:PORT {
			penstock ` + strconv.Itoa(limit) + `/31d fixed_window
			respond "ok"
		}`
	}
	shared := over("redis " + redis.URL() + " {\n timeout 5s\n }")
	s := start(t, shared)
	var admitted atomic.Int64
	var group sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if s.get("/").StatusCode == http.StatusOK {
					admitted.Add(1)
				}
			}
		})
	}
	eventually.Until(t, 20*time.Second, "units are in hand", func() bool {
		metrics := grep(s.metrics(), "penstock_lease_units_in_hand")
		return !strings.Contains(metrics, "penstock_lease_units_in_hand 0") && admitted.Load() > 500
	})
	close(done)
	group.Wait()
	if err := s.load(over("memory")); err != nil {
		t.Fatal(err)
	}
	if metrics := grep(s.metrics(), "penstock_lease"); metrics != "" {
		t.Errorf("without a shared store there are metrics of one:\n%s", metrics)
	}
	if err := s.load(shared); err != nil {
		t.Fatal(err)
	}
	s.get("/").wantField(t, "X-RateLimit-Remaining", strconv.FormatInt(limit-admitted.Load()-1, 10))
}
