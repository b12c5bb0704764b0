// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisadmin"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// patience is how long a busy machine may take for a call.
const patience = 20 * time.Second

// world is a Redis with a store and the servers as an operator sees them.
type world struct {
	t       *testing.T
	store   *redisstore.Store
	servers *redisadmin.Deployment
	flush   func()
}

func open(t *testing.T, o redisstore.Options, flush func()) *world {
	t.Helper()
	store, err := redisstore.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	o.Timeout = 0
	servers, err := redisadmin.Connect(t.Context(), redisadmin.Options{Redis: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = servers.Close() })
	return &world{t, store, servers, flush}
}

func flushAll(t *testing.T, servers ...*redistest.Server) func() {
	return func() {
		for _, s := range servers {
			if err := s.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func single(t *testing.T) *world {
	s := redistest.Start(t)
	return open(t, redisstore.Options{URL: s.URL(), Timeout: redisstore.TimeoutMax}, flushAll(t, s))
}

func ring(t *testing.T) *world {
	servers := []*redistest.Server{redistest.StartTCP(t), redistest.StartTCP(t), redistest.StartTCP(t)}
	o := redisstore.Options{Mode: redisstore.ModeRing, Timeout: redisstore.TimeoutMax}
	for _, s := range servers {
		o.Addrs = append(o.Addrs, s.Addr)
	}
	return open(t, o, flushAll(t, servers...))
}

func cluster(t *testing.T) *world {
	c := redistest.StartCluster(t)
	return open(t, redisstore.Options{Mode: redisstore.ModeCluster, Addrs: c.Addrs(), Timeout: redisstore.TimeoutMax}, flushAll(t, c.Nodes[:3]...))
}

// world.take sends each check to the store in a call of its own. An error fails the test.
func (w *world) take(checks ...counter.Check) []counter.Result {
	w.t.Helper()
	results := make([]counter.Result, len(checks))
	for i := range checks {
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		err := w.store.Take(ctx, checks[i:i+1], results[i:i+1])
		cancel()
		if err != nil {
			w.t.Fatalf("%s: %v", checks[i].Key, err)
		}
	}
	return results
}

func (w *world) backup() *bytes.Reader {
	w.t.Helper()
	var file bytes.Buffer
	if _, err := Write(w.t.Context(), w.servers, &file); err != nil {
		w.t.Fatal(err)
	}
	return bytes.NewReader(file.Bytes())
}

func (w *world) restore(file *bytes.Reader, dry bool) Restored {
	w.t.Helper()
	restored, err := Restore(w.t.Context(), w.servers, file, dry)
	if err != nil {
		w.t.Fatal(err)
	}
	return restored
}
