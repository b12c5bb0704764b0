// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// open returns a store that uses a Redis, as a user with only the rights that a store needs.
func open(t *testing.T, server *redistest.Server) *redisstore.Store {
	t.Helper()
	rules := []any{"acl", "setuser", "node", "reset", "on", ">secret"}
	for word := range strings.FieldsSeq(redisstore.LeastPrivilege) {
		rules = append(rules, word)
	}
	if err := server.Client().Do(t.Context(), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(redisstore.Options{URL: server.URL(), Username: "node", Password: "secret", Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// read returns the records that all nodes have written to Redis.
func read(t *testing.T, store *redisstore.Store) *Reading {
	t.Helper()
	found, err := Read(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// node returns a Node whose policies have the given version.
func node(front, version string) *Node {
	return New(Sources{Front: front, Policies: func() []Policy { return []Policy{{Name: "shop", Version: version}} },
		Totals: func() []Total { return []Total{{"shop", "api", 10, 3}, {"shop", "", 0, 1}} }}, time.Now().Add(-time.Hour))
}

// TestNodesKnowOfEachOther: each node that has joined is listed, until it leaves.
func TestNodesKnowOfEachOther(t *testing.T) {
	server := redistest.Start(t)
	stores := []*redisstore.Store{open(t, server), open(t, server)}
	first, second := Join(stores[0], node("caddy", "a1")), Join(stores[1], node("bridge", "b2"))
	eventually.Until(t, 20*time.Second, "both nodes are listed", func() bool { return len(read(t, stores[0]).Records) == 2 })
	nodes := read(t, stores[1]).Nodes(time.Now()).Nodes
	if len(nodes) != 2 || nodes[0].Front != "bridge" || nodes[0].State != StateOK || nodes[1].Policies[0] != (Policy{Name: "shop", Version: "a1"}) {
		t.Errorf("the nodes are %+v", nodes)
	}
	if up := time.Since(nodes[0].Since); up < time.Hour || up > 2*time.Hour {
		t.Errorf("a node that began an hour ago runs since %v", nodes[0].Since)
	}
	if top := read(t, stores[0]).Top(10); top.Nodes != 2 || top.Rules[0].Rule != "api" || top.Rules[0].Admitted != 20 || top.Rules[0].Denied != 6 {
		t.Errorf("the sums are %+v", top)
	}
	first.Close()
	if left := read(t, stores[1]).Records; len(left) != 1 || left[0].Front != "bridge" {
		t.Errorf("after one has left: %+v", left)
	}
	second.Close()
	for _, key := range server.Client().Keys(t.Context(), "*").Val() {
		if ttl := server.Client().PTTL(t.Context(), key).Val(); ttl <= 0 || ttl > forgottenAfter {
			t.Errorf("the key %q expires in %v", key, ttl)
		}
	}
}

// TestRecordsOfOthersAreRead: an unreadable record in Redis is left out and counted, and a node
// without a recent heartbeat is silent.
func TestRecordsOfOthersAreRead(t *testing.T) {
	server := redistest.Start(t)
	store, ctx := open(t, server), context.Background()
	good := node("caddy", "a1").Record(time.Now())
	good.Rules[0].DeniedMinute = 3
	put := func(id string, value any) {
		server.Client().ZAdd(ctx, fleetKey, redis.Z{Score: 1, Member: id})
		server.Client().Set(ctx, recordPrefix+id, value, 0)
	}
	now, err := serverTime(ctx, store)
	if err != nil {
		t.Fatal(err)
	}
	for id, age := range map[string]time.Duration{"silent": time.Minute, "ahead": -time.Hour} {
		r := *good
		r.ID, r.SeenMicros = id, now-age.Microseconds()
		text, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		put(id, text)
	}
	later, _ := json.Marshal(map[string]any{"v": 2, "id": "later"})
	for id, text := range map[string]string{"text": "hello", "later": string(later), "other": `{"v":1,"id":"another"}`, "number": "7",
		"large": `{"v":1,"id":"large","name":"` + strings.Repeat("x", RecordBytesMax) + `"}`, "old": `{"v":1,"id":"old","up_s":-5}`,
		"over": `{"v":1,"id":"over","clients":[{"refused":1,"over":2}]}`, strings.Repeat("\xff", 255): "\x00", "null": "null", "list": "[]"} {
		put(id, text)
	}
	server.Client().ZAdd(ctx, fleetKey, redis.Z{Score: 1, Member: "hash"}, redis.Z{Score: 1, Member: "gone"})
	server.Client().HSet(ctx, recordPrefix+"hash", "a", "b")
	found := read(t, store)
	nodes := found.Nodes(time.Now())
	if nodes.Unreadable != 11 || len(nodes.Nodes) != 2 {
		t.Fatalf("%d records cannot be read, and the nodes are %+v", nodes.Unreadable, nodes.Nodes)
	}
	for _, n := range nodes.Nodes {
		if want := map[string]string{"silent": StateSilent, "ahead": StateOK}[n.ID]; n.State != want {
			t.Errorf("the node %s is %s after %d ms, want %s", n.ID, n.State, n.SeenMs, want)
		}
	}
	if top := found.Top(10); top.Rules[0].Denied != 6 || top.Rules[0].DeniedMinute != 3 {
		t.Errorf("of a silent node the last minute must not count: %+v", top.Rules)
	}
	server.Client().Del(ctx, fleetKey)
	server.Client().Set(ctx, fleetKey, "not a set", 0)
	if _, err := Read(ctx, store); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("a set that is none: %v", err)
	}
}

// TestRecordsAreBounded: even with the longest names of clients, a record is within its bound,
// because its least important parts are dropped.
func TestRecordsAreBounded(t *testing.T) {
	sketch := topk.New(topk.Options{})
	for i := range 2000 {
		for range 1 + i%7 {
			sketch.Add(strings.Repeat("p", 255), fmt.Sprint("ip:", i, strings.Repeat("\x00", 240)))
		}
	}
	var totals []Total
	for i := range 10_000 {
		totals = append(totals, Total{"shop", fmt.Sprint(strings.Repeat("é", 100), i), uint64(i), uint64(i)})
	}
	n := New(Sources{Front: "caddy", Denied: sketch, Totals: func() []Total { return totals },
		Problems: func() []string { return []string{strings.Repeat("x", 10_000)} }}, time.Now())
	r := n.Record(time.Now())
	text, err := r.encode()
	if err != nil || len(text) > RecordBytesMax {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	short, err := decode(r.ID, text)
	if err != nil || len(short.Rules) == 0 || short.Rules[0] != r.Rules[0] || len(short.Problems[0]) != textBytesMax {
		t.Errorf("%+v, %v", short, err)
	}
}

// TestTheLastMinute: the figures of a rule for the last minute are the differences between its
// totals now and a minute ago.
func TestTheLastMinute(t *testing.T) {
	now, total := time.Unix(1e9, 0), Total{Policy: "shop", Rule: "api"}
	n := New(Sources{Totals: func() []Total { return []Total{total} }}, now)
	for second := range 300 {
		now = now.Add(time.Second)
		total.Admitted += 10
		if second >= 200 {
			total.Denied++
		}
		rule := n.Record(now).Rules[0]
		admitted, denied := uint64(10*min(second+1, 60)), uint64(min(max(0, second-199), 60))
		if rule.AdmittedMinute != admitted || rule.DeniedMinute+7 < denied || rule.DeniedMinute > denied {
			t.Fatalf("after %d seconds: %+v, want %d admitted and %d denied in the last minute", second+1, rule, admitted, denied)
		}
		if len(n.past) > 15 {
			t.Fatalf("%d snapshots are kept", len(n.past))
		}
	}
}

// TestVersionsAreCompared: a node is degraded if its version of a policy differs from that of most
// nodes of its kind.
func TestVersionsAreCompared(t *testing.T) {
	states := func(versions ...string) (all []string) {
		r := new(Reading)
		for i, v := range versions {
			front, version, _ := strings.Cut(v, " ")
			one := node(front, version).Record(time.Now())
			one.ID, one.Name = fmt.Sprint(i), fmt.Sprint(i)
			r.Records = append(r.Records, one)
		}
		nodes := r.Nodes(time.Now()).Nodes
		slices.SortFunc(nodes, func(a, b NodeState) int { return strings.Compare(a.ID, b.ID) })
		for _, n := range nodes {
			all = append(all, n.State)
		}
		return all
	}
	for _, c := range []struct{ nodes, want []string }{
		{[]string{"caddy a", "caddy a", "bridge b"}, []string{"ok", "ok", "ok"}},
		{[]string{"caddy a", "caddy a", "caddy b"}, []string{"ok", "ok", "degraded"}},
		{[]string{"caddy a", "caddy b"}, []string{"degraded", "degraded"}},
		{[]string{"caddy a"}, []string{"ok"}},
	} {
		if got := states(c.nodes...); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.nodes, got, c.want)
		}
	}
}

// FuzzRecords: no value in Redis makes a reader panic.
func FuzzRecords(f *testing.F) {
	text, _ := node("caddy", "a1").Record(time.Now()).encode()
	f.Add("x", text)
	f.Add("x", []byte(`{"v":1,"id":"x","seen_us":-9223372036854775808,"up_s":3000000000}`))
	f.Fuzz(func(_ *testing.T, id string, text []byte) {
		r := &Reading{NowMicros: 1e15}
		if one, err := decode(id, text); err == nil {
			r.Records = append(r.Records, one)
		}
		r.Add(node("caddy", "a").Record(time.Now()))
		r.Nodes(time.Now())
		r.Top(5)
	})
}
