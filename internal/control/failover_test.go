// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// caller sends requests to a process, and repeats each until the answer is 200. It counts the
// successes and the failures.
type caller struct {
	address, token string
	done, failures atomic.Int64
}

// caller.call sends a request until it succeeds or the context is done.
func (c *caller) call(ctx context.Context, method, path, body string) {
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, 15*time.Second)
		request, err := http.NewRequestWithContext(attempt, method, "http://"+c.address+path, strings.NewReader(body))
		if err != nil {
			panic(err) // the address is valid
		}
		request.Header.Set("Authorization", "Bearer "+c.token)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
		}
		cancel()
		if err == nil && response.StatusCode == http.StatusOK {
			c.done.Add(1)
			return
		}
		c.failures.Add(1)
	}
}

// TestPostgreSQLFailsOver kills the primary while batches and changes of clients arrive, and
// promotes its synchronous standby. The new primary then has everything that was acknowledged, each
// change once, and the process continues to store batches and to publish.
func TestPostgreSQLFailsOver(t *testing.T) {
	t.Parallel()
	primary, redis := pgtest.Start(t), redistest.Start(t)
	standby := primary.Standby()
	url := primary.URLWith(standby)
	r := run(t, url, redis.URL())
	eventually.Until(t, patience, "the process is ready", func() bool { status, _ := r.status("/readyz"); return status == http.StatusOK })
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l := &ledger.Ledger{Pool: pool}
	token := func(role ledger.Role) string {
		secret, _, err := l.NewToken(t.Context(), ledger.Actor{Name: "test"}, string(role), role, time.Now().Add(time.Hour), "a test")
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	node, editor := &caller{address: r.address, token: token(ledger.Node)}, &caller{address: r.address, token: token(ledger.Editor)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sending sync.WaitGroup
	ending := make(chan struct{})
	loop := func(c *caller, one func(n int64)) {
		sending.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				one(n)
				select {
				case <-ending:
					return
				default:
				}
			}
		})
	}
	loop(node, func(n int64) {
		line := fmt.Sprintf(`{"time":%q,"kind":"usage","policy":"shop","rule":"api","client":"user:a","admitted":1,"units":3}`, time.Now().UTC().Format(time.RFC3339Nano))
		node.call(ctx, "PUT", fmt.Sprintf("/v1/batches/%s/%d", strings.Repeat("a", 32), n), line)
	})
	loop(editor, func(n int64) {
		editor.call(ctx, "POST", fmt.Sprintf("/v1/clients/user:%d/edits", n), `{"action":"note","note":"n","reason":"a test"}`)
	})
	goOn := func(what string) {
		t.Helper()
		batches, changes := node.done.Load(), editor.done.Load()
		eventually.Until(t, patience, what, func() bool { return node.done.Load() > batches+10 && editor.done.Load() > changes+10 })
	}
	goOn("batches and changes are taken")
	primary.Destroy()
	failures := node.failures.Load()
	eventually.Until(t, patience, "batches are not taken", func() bool { return node.failures.Load() > failures })
	standby.Promote()
	goOn("the new primary takes batches and changes")
	close(ending)
	sending.Wait()
	checkFailedOver(t, l, node.done.Load(), editor.done.Load())
	checkPublished(t, redis.URL(), editor.done.Load())
}

// checkFailedOver compares the tables with what was acknowledged.
func checkFailedOver(t *testing.T, l *ledger.Ledger, batches, changes int64) {
	t.Helper()
	l.Pool.Reset() // its connections may be those to the old primary
	for query, want := range map[string]int64{"SELECT sum(units)::bigint FROM client_usage": 3 * batches, "SELECT sum(admitted)::bigint FROM client_usage": batches,
		"SELECT number FROM feeds": batches, "SELECT batches FROM feeds": batches,
		"SELECT count(*) FROM clients WHERE kind = 'user' AND note = 'n'": changes} {
		var got int64
		if err := l.Pool.QueryRow(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %d, want %d, %v", query, got, want, err)
		}
	}
	if _, broken, err := l.Verify(t.Context()); err != nil || broken != "" {
		t.Errorf("the history: %s %v", broken, err)
	}
}

// checkPublished waits until Redis has the record of the last client.
func checkPublished(t *testing.T, url string, last int64) {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: url, Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	published := directory.Editor{Source: redisdir.New(store)}
	eventually.Until(t, patience, "the record of the last change is in Redis", func() bool {
		_, r, err := published.Look(t.Context(), fmt.Sprint("user:", last))
		return err == nil && r != nil && r.Note == "n"
	})
}
