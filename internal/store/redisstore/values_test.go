// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestValuesDoNotDelayCalls: while commands on plain values wait for the server on all of their
// connections, calls on counters are answered as usual.
func TestValuesDoNotDelayCalls(t *testing.T) {
	const waiting, patience = 2 * valueConnsMax, 10 * time.Second
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for range waiting {
		all.Go(func() { _, _ = s.DoFor(ctx, "k", "blpop", "empty", patience.Seconds()) })
	}
	waitUntil(t, "the commands wait", func() bool {
		text, err := server.Client().Info(t.Context(), "clients").Result()
		return err == nil && infoField(text, "blocked_clients") == strconv.Itoa(valueConnsMax)
	})
	start := time.Now()
	for range 3 {
		err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "1000/1d")), make([]counter.Result, 1))
		if err != nil && kindOf(err) != "timeout" {
			t.Error(err)
		}
	}
	if took := time.Since(start); took > slowest {
		t.Errorf("the calls took %s beside commands that wait", took)
	}
	for range waiting {
		server.Client().RPush(t.Context(), "empty", "x")
	}
	all.Wait()
}
