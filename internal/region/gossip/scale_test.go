// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/lua"
)

// counterBytesMax is the most bytes that a changed counter may take in a message on average.
const counterBytesMax = 64

// TestManyChangedCounters reports many changed counters of one region to another region over TLS.
// Each region has its own Redis. The number of changed counters is 20,000, or
// PENSTOCK_GOSSIP_COUNTERS.
func TestManyChangedCounters(t *testing.T) {
	n := racescale.Fewer(20_000)
	if text := os.Getenv("PENSTOCK_GOSSIP_COUNTERS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	p := newPair(t)
	limit, err := counter.ParseLimit("100/31d")
	if err != nil {
		t.Fatal(err)
	}
	names := p.fill(t, &limit, n)
	p.mark(t, names)
	runtime.GC()
	heap := heapInUse()
	begun := time.Now()
	if err := p.from.tell(t.Context(), p.peer); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	told, charged := p.peer.told.Load(), p.to.charged.Load()
	perCounter := float64(p.bytes) / float64(told)
	t.Logf("%d counters in %v, %.0f a second, %.1f bytes each; the last message told changes of up to %v before; %d MB of memory beside the test's, "+
		"%d and %d MB in Redis, which took %v and %v", told, took, float64(told)/took.Seconds(), perCounter, time.Duration(p.peer.delay.Load()),
		(p.heap-min(p.heap, heap))>>20, p.redis[0].Memory()>>20, p.redis[1].Memory()>>20, p.redis[0].ServerTime("evalsha"),
		p.redis[1].ServerTime("evalsha"))
	if told != uint64(n) || charged != uint64(3*n) {
		t.Errorf("%d counters were told and %d units charged, want %d and %d", told, charged, n, 3*n)
	}
	if perCounter > counterBytesMax {
		t.Errorf("%.1f bytes a counter, want at most %d", perCounter, counterBytesMax)
	}
	if p.heap > heap+256<<20 {
		t.Errorf("telling takes %d MB", (p.heap-heap)>>20)
	}
	if delay := time.Duration(p.peer.delay.Load()); delay > time.Since(begun)+time.Minute || n > 2*pageMax && delay < took/4 {
		t.Errorf("the last message told changes of %v before, after %v", delay, took)
	}
}

// pair is two regions. Only the first one reports.
type pair struct {
	redis    [2]*redistest.Server
	store    *redisstore.Store // of the first
	from, to *Agent
	peer     *Peer
	bytes    int    // of all messages
	heap     uint64 // the most that was in use
}

func newPair(t *testing.T) *pair {
	t.Helper()
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	ca := certtest.NewAuthority(t, file("ca.pem"), file("ca.key"))
	p := new(pair)
	agent := func(i int, name, other string) (a *Agent, config *tls.Config) {
		p.redis[i] = redistest.Start(t)
		store, err := redisstore.New(redisstore.Options{URL: p.redis[i].URL(), Timeout: redisstore.TimeoutMax})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		if i == 0 {
			p.store = store
		}
		ca.Issue(t, file(name+".pem"), file(name+".key"), certtest.Region(name))
		config = certtest.Mutual(t, folder, name)
		return New(Options{Region: name, Store: store, Peers: []*Peer{{Name: other}}, Logger: slog.New(slog.DiscardHandler), Policy: func() Policy {
			return Policy{Namespace: namespace, Rules: map[string]bool{"api": true}, Interval: time.Second, Keep: time.Hour}
		}}), config
	}
	var mine, its *tls.Config
	p.from, mine = agent(0, "a", "b")
	p.to, its = agent(1, "b", "a")
	server := httptest.NewUnstartedServer(p.to.Handler())
	server.TLS, server.EnableHTTP2 = its, true
	server.StartTLS()
	t.Cleanup(server.Close)
	var err error
	if p.peer, err = NewPeer("b", server.URL, mine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.peer.Close)
	send := p.peer.send
	p.peer.send = func(ctx context.Context, message []byte) (answer, error) {
		p.bytes += len(message)
		p.heap = max(p.heap, heapInUse())
		return send(ctx, message)
	}
	return p
}

// pair.fill charges 3 units to each of n counters of the first region, and returns the names of
// these counters. The clients are named by UUIDs, as in many services.
func (p *pair) fill(t *testing.T, limit *counter.Limit, n int) (names []string) {
	t.Helper()
	now := time.Now().UnixMicro()
	state := fmt.Sprintf("%d 3 0", now-now%int64(limit.Window()))
	pipe := p.redis[0].Client().Pipeline()
	for range n {
		c := regionstore.Changed{Key: namespace + "api:{header.x-user:" + uuid() + "}" + counter.KeyTail(limit), Limit: *limit}
		names = append(names, c.String())
		if pipe.Set(t.Context(), c.Key, state, time.Hour); pipe.Len() == 10_000 || len(names) == n {
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return names
}

// uuid returns a random UUID of 36 characters.
func uuid() string {
	text := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// pair.mark marks counters as changed, as the fronts do.
func (p *pair) mark(t *testing.T, names []string) {
	t.Helper()
	for some := range slices.Chunk(names, readMax) {
		keys, args := regionstore.MarkCall(some, regionstore.ChangedMax)
		if _, err := p.store.Eval(t.Context(), lua.GossipMark, redisstore.ScriptCall{Keys: keys, Args: args}); err != nil {
			t.Fatal(err)
		}
	}
}

// heapInUse returns how many bytes of the heap are in use.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
