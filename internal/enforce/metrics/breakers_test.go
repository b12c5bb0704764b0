// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// breakers collects the metrics of the stores' circuit breakers, as a scrape does.
type breakers []*redisstore.Store

func (b breakers) Describe(ch chan<- *prometheus.Desc) { describeBreakers(ch) }
func (b breakers) Collect(ch chan<- prometheus.Metric) { collectBreakers(ch, b...) }

// TestBreakersOfEachServer: a server that is down has its own series, and a server of two stores
// has one series.
func TestBreakersOfEachServer(t *testing.T) {
	up, down := redistest.StartTCP(t), redistest.StartTCP(t)
	down.Kill()
	both := breakers{
		open(t, redisstore.Options{Mode: redisstore.ModeRing, Addrs: []string{up.Addr, down.Addr}}),
		open(t, redisstore.Options{URL: up.URL()}),
	}
	limit, err := counter.ParseLimit("1000/1m")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1", down.Addr + " 1", up.Addr + " 0"}
	slices.Sort(want)
	asked := 0
	eventually.Until(t, 20*time.Second, "one breaker is open, and one closed", func() bool {
		asked++
		check := counter.Check{Key: []byte("rl1:{" + strconv.Itoa(asked) + "}"), Limit: &limit, Cost: 1}
		_ = both[0].Take(t.Context(), []counter.Check{check}, make([]counter.Result, 1))
		return slices.Equal(series(t, both), want)
	})
}

func open(t *testing.T, o redisstore.Options) *redisstore.Store {
	t.Helper()
	o.Timeout = redisstore.TimeoutMax
	s, err := redisstore.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
