// SPDX-License-Identifier: Apache-2.0

package tally

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/redistest"
)

// breakers collects what is told of stores, as a scrape does.
type breakers []*redisstore.Store

func (b breakers) Describe(ch chan<- *prometheus.Desc) { DescribeBreakers(ch) }
func (b breakers) Collect(ch chan<- prometheus.Metric) { CollectBreakers(ch, b...) }

// TestBreakersOfEachServer: one that is gone shows which it is, and a server that two stores ask is one series.
func TestBreakersOfEachServer(t *testing.T) {
	up, down := redistest.StartTCP(t), redistest.StartTCP(t)
	down.Kill()
	both := breakers{
		open(t, redisstore.Options{Mode: redisstore.ModeRing, Addrs: []string{up.Addr, down.Addr}}),
		open(t, redisstore.Options{URL: up.URL()}),
	}
	limit, err := core.ParseLimit("1000/1m")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1", down.Addr + " 1", up.Addr + " 0"}
	slices.Sort(want)
	asked := 0
	await.Until(t, 20*time.Second, "one breaker is open, and one closed", func() bool {
		asked++
		check := core.Check{Key: []byte("rl1:{" + strconv.Itoa(asked) + "}"), Limit: &limit, Cost: 1}
		_ = both[0].Take(t.Context(), []core.Check{check}, make([]core.Result, 1))
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
