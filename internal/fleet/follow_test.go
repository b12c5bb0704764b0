// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// writes stands for the log of a node. Tests add made-up events to it.
type writes struct {
	mu  sync.Mutex
	all []events.Event
}

// writes.deny adds denials of clients.
func (w *writes) deny(rule string, clients ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range clients {
		w.all = append(w.all, events.Event{Time: time.Unix(int64(1_800_000_000+len(w.all)), 0).UTC(), Kind: events.KindDenied, Rule: rule, Client: c, Count: 1})
	}
}

// writes.tail is like [events.Log.Tail].
func (w *writes) tail(from uint64, wants func(*events.Event) bool) (t events.Tail) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Next = uint64(len(w.all))
	t.From = min(from, t.Next)
	for n := t.From; n < t.Next; n++ {
		if wants(&w.all[n]) {
			t.Events, t.Numbers = append(t.Events, w.all[n]), append(t.Numbers, n)
		}
	}
	return t
}

// newReporting returns a node that reports events.
func newReporting(w *writes) *Node {
	return New(Sources{Front: "caddy", Policies: func() []Policy { return []Policy{{Name: "shop", Events: true}} }, Events: w.tail}, time.Now())
}

// reader follows the events of a Redis.
type reader struct {
	t     *testing.T
	store *redisstore.Store
	own   *Node
	query EventQuery
	got   []string
}

// reader.read reads a page.
func (r *reader) read() *EventPage {
	r.t.Helper()
	page, err := Follow(r.t.Context(), r.store, r.own, &r.query)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range page.Events {
		r.got = append(r.got, e.Rule+" "+e.Client)
	}
	r.query.After = page.After
	return page
}

// readUntil reads pages until they contain the events named in want, each exactly once.
func (r *reader) readUntil(want ...string) {
	r.t.Helper()
	slices.Sort(want)
	eventually.Until(r.t, 20*time.Second, fmt.Sprint("the events are ", want), func() bool {
		r.read()
		slices.Sort(r.got)
		if len(r.got) > len(want) {
			r.t.Fatalf("read %q, want %q", r.got, want)
		}
		return slices.Equal(r.got, want)
	})
}

// TestFollow tests that a reader gets each event of all nodes once, both the events from before its
// first page and the later ones, and that each filter selects independently.
func TestFollow(t *testing.T) {
	server := redistest.Start(t)
	store := open(t, server)
	first, second := new(writes), new(writes)
	own := newReporting(first)
	defer Join(store, own).Close()
	defer Join(store, newReporting(second)).Close()
	first.deny("api", "user:ann")
	second.deny("api", "user:ann", "ip:192.0.2.0/24")
	all, ann := &reader{t: t, store: store, own: own}, &reader{t: t, store: store, query: EventQuery{Filter: events.Filter{Client: "user:ann"}}}
	ip := &reader{t: t, store: store, query: EventQuery{Filter: events.Filter{Client: "ip:192.0.2.7", Rule: "api"}}}
	all.readUntil("api user:ann", "api user:ann", "api ip:192.0.2.0/24")
	ann.readUntil("api user:ann", "api user:ann")
	ip.readUntil("api ip:192.0.2.0/24")
	second.deny("search", "user:ann", "user:bob")
	first.deny("api", "user:bob", "ip:192.0.2.7")
	all.readUntil("api user:ann", "api user:ann", "api ip:192.0.2.0/24", "search user:ann", "search user:bob", "api user:bob", "api ip:192.0.2.7")
	ann.readUntil("api user:ann", "api user:ann", "search user:ann")
	ip.readUntil("api ip:192.0.2.0/24", "api ip:192.0.2.7")
	if page := all.read(); len(page.Nodes) != 2 || page.Awaited != 0 || page.Missed != 0 || page.Nodes[0].Mute {
		t.Errorf("%+v", page)
	}
	for _, key := range server.Client().Keys(t.Context(), "*").Val() {
		if ttl := server.Client().PTTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("the key %q does not expire", key)
		}
	}
}

// TestReadersTakeTurns tests that a call that cannot use Redis because of other readers returns
// only the events of its own node. Without such a node, it returns an error. In both cases it gives
// the reason.
func TestReadersTakeTurns(t *testing.T) {
	store := open(t, redistest.Start(t))
	w := new(writes)
	w.deny("api", "user:ann")
	for range readersMax {
		reading <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	page, err := Follow(ctx, store, newReporting(w), new(EventQuery))
	if err != nil || len(page.Events) != 1 || page.Problem != errReaders.Error() {
		t.Errorf("%+v, error %v", page, err)
	}
	if _, err = Follow(ctx, store, nil, new(EventQuery)); !errors.Is(err, errReaders) {
		t.Errorf("without an own node: error %v", err)
	}
	for range readersMax {
		<-reading
	}
	r := &reader{t: t, store: store, own: newReporting(w)}
	for range 2 * readersMax {
		if page := r.read(); page.Problem != "" {
			t.Fatal(page.Problem)
		}
	}
}

// TestOwnEventsWithoutRedis tests that a node shows its own events while Redis does not answer, and
// that the reader's places in the events of other nodes stay as they were.
func TestOwnEventsWithoutRedis(t *testing.T) {
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + freeport.Address(t), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w := new(writes)
	w.deny("api", "user:ann")
	r := &reader{t: t, store: store, own: newReporting(w), query: EventQuery{After: "other-7"}}
	if page := r.read(); len(page.Events) != 1 || page.Problem == "" || !strings.Contains(page.After, "other-7") {
		t.Errorf("%+v", page)
	}
	if page := r.read(); len(page.Events) != 0 {
		t.Errorf("once more: %+v", page)
	}
	r.own = nil
	if _, err := Follow(t.Context(), store, nil, &r.query); err == nil {
		t.Error("nobody answers, and there is no error")
	}
}

// TestNothingIsSentToNobody tests that a node writes no events while they are not being followed.
func TestNothingIsSentToNobody(t *testing.T) {
	server := redistest.Start(t)
	store, w := open(t, server), new(writes)
	w.deny("api", "user:ann")
	m := &Member{store: store, node: newReporting(w)}
	var last sentEvents
	if followed, err := m.sendEventsOnce(t.Context(), &last, time.Now()); followed || err != nil {
		t.Errorf("followed %v, %v", followed, err)
	}
	if n := server.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are in Redis", n)
	}
	if _, err := register(t.Context(), store, &events.Filter{}); err != nil {
		t.Fatal(err)
	}
	if followed, err := m.sendEventsOnce(t.Context(), &last, time.Now()); !followed || err != nil {
		t.Errorf("followed %v, %v", followed, err)
	}
	if err := server.Client().ZAdd(t.Context(), followKey, redis.Z{Score: 1, Member: "{}"}).Err(); err != nil { // a filter that has ended
		t.Fatal(err)
	}
	if followed, err := m.sendEventsOnce(t.Context(), &last, time.Now()); followed || err != nil {
		t.Errorf("after the follower has gone: followed %v, %v", followed, err)
	}
}

// TestEventsAreBounded tests that a node sends the latest events that fit, however long the names
// of clients are, and that a reader gets the number of the omitted ones.
func TestEventsAreBounded(t *testing.T) {
	server := redistest.Start(t)
	store, w := open(t, server), new(writes)
	m, r := &Member{store: store, node: newReporting(w)}, &reader{t: t, store: store}
	if err := server.Client().ZAdd(t.Context(), fleetKey, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: m.node.id}).Err(); err != nil {
		t.Fatal(err)
	}
	var last sentEvents
	send := func() {
		t.Helper()
		if followed, err := m.sendEventsOnce(t.Context(), &last, time.Now()); !followed || err != nil {
			t.Fatalf("followed %v, %v", followed, err)
		}
	}
	if page := r.read(); page.Awaited != 1 {
		t.Errorf("before the node has sent anything: %+v", page)
	}
	w.deny("api", "user:ann")
	send()
	if page := r.read(); len(page.Events) != 1 || page.Missed != 0 {
		t.Errorf("%+v", page)
	}
	const n = 1000
	for i := range n {
		w.deny("api", fmt.Sprint("user:", strings.Repeat("<\x00\"", 80), i))
	}
	send()
	if length := server.Client().StrLen(t.Context(), eventsPrefix+m.node.id).Val(); length > eventsTextMax || length < EventsBytesMax/2 {
		t.Errorf("the events have %d bytes", length)
	}
	page := r.read()
	if got := uint64(len(page.Events)); got == 0 || got+page.Missed != n || !strings.HasSuffix(page.Events[got-1].Client, fmt.Sprint(n-1)) {
		t.Errorf("%d events and %d missed of %d", got, page.Missed, n)
	}
	if page := r.read(); len(page.Events) != 0 || page.Missed != 0 {
		t.Errorf("once more: %d events, %d missed", len(page.Events), page.Missed)
	}
}

// TestEventsOfOthersAreNotTrusted tests that a value in Redis that does not contain a node's events
// is counted as unreadable, and that a place that is not well formed is rejected.
func TestEventsOfOthersAreNotTrusted(t *testing.T) {
	server := redistest.Start(t)
	store := open(t, server)
	for id, text := range map[string]string{"a": "hello", "b": `{"v":2,"id":"b"}`, "c": `{"v":1,"id":"another"}`, "d": `{"v":1,"id":"d","numbers":[1]}`,
		"e": `{"v":1,"id":"e","from":9,"next":2}`, "f": `{"v":1,"id":"f","numbers":[5,1],"events":[{},{}]}`, "G": `{"v":1,"id":"G","filters":[{}]}`,
		"h": `{"v":1,"id":"h","name":"` + strings.Repeat("x", eventsTextMax) + `"}`} {
		server.Client().ZAdd(t.Context(), fleetKey, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: id})
		server.Client().Set(t.Context(), eventsPrefix+id, text, 0)
	}
	server.Client().ZAdd(t.Context(), followKey, redis.Z{Score: 1e18, Member: "no filter"})
	r := &reader{t: t, store: store}
	if page := r.read(); page.Unreadable != 8 || len(page.Events) != 0 || page.After != "" {
		t.Errorf("%+v", page)
	}
	m := &Member{store: store, node: newReporting(new(writes))}
	if filters, err := m.followed(t.Context()); err != nil || !slices.Equal(filters, []events.Filter{{}}) {
		t.Errorf("filters %+v, %v", filters, err)
	}
	for _, place := range []string{"x", "a-", "a-x", "A-1", "a-1,", strings.Repeat("a-1,", 10_000), "a--1"} {
		if _, err := Follow(t.Context(), nil, nil, &EventQuery{After: place}); !errors.Is(err, ErrAfter) {
			t.Errorf("place %.20q: %v", place, err)
		}
	}
}

// FuzzEventsText tests that no text in Redis makes addText panic, or moves a reader's position in a
// node's events backwards.
func FuzzEventsText(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"a","filters":[{}],"from":1,"next":3,"numbers":[1,2],"events":[{"kind":"denied","time":"2026-01-01T00:00:00Z"},{}]}`))
	f.Add([]byte(`{"v":1,"id":"a","filters":[{"client":"ip:::/0"}],"next":18446744073709551615,"numbers":[0],"events":[null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		page, places := new(EventPage), map[string]uint64{"a": 2}
		page.addText("a", text, places, &events.Filter{})
		if places["a"] < 2 || len(places) != 1 {
			t.Errorf("%q moves the places to %v", text, places)
		}
		for i := range page.Events {
			if line, err := page.Events[i].MarshalJSON(); err != nil || len(line) > events.LineBytesMax {
				t.Errorf("an event has %d bytes, %v", len(line), err)
			}
		}
	})
}
