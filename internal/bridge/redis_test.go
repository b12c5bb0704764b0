// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/internal/wire"
)

// TestACallIsOnePipeline: 64 questions of 64 clients go to Redis together.
func TestACallIsOnePipeline(t *testing.T) {
	server := redistest.Start(t)
	store, err := redisstore.New(redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // never fails
	h := open(t, shop, func(o *Options) { o.Store, o.Shared = store, true })
	await.Until(t, 10*time.Second, "redis answers", func() bool { return store.Check(t.Context()) == nil })
	h.ask(h.question("/api/x", "192.0.2.200"))
	var items []wire.Item
	for i := range 64 {
		items = append(items, h.question([]string{"/api/x", "/slow"}[i%2], "192.0.2."+string('1'+byte(i/32))+string('0'+byte(i%10))))
	}
	pipelines, asked := store.Stats().Batches, server.Calls("evalsha")
	for i, a := range h.ask(items...) {
		if a.Status != wire.StatusOK {
			t.Errorf("question %d: status %d", i, a.Status)
		}
	}
	if got, calls := store.Stats().Batches-pipelines, server.Calls("evalsha")-asked; got != 1 || calls != 64 {
		t.Errorf("%d pipelines of %d calls, want 1 of 64", got, calls)
	}
}
