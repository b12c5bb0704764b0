// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
)

// sources runs a test over two sources: one in memory, and one in a real Redis.
func sources(t *testing.T, run func(t *testing.T, source directory.Source)) {
	t.Run("memory", func(t *testing.T) { run(t, new(directory.Memory)) })
	t.Run("redis", func(t *testing.T) { run(t, inRedis(t, redistest.Start(t).URL())) })
}

func inRedis(t *testing.T, url string) *redisdir.Source {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: url, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return redisdir.New(store)
}

func open(t *testing.T, o directory.Options) *directory.Directory {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	d, err := directory.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// edit makes a change of a record, and fails the test if it does not succeed.
func edit(t *testing.T, source directory.Source, e directory.Edit) *directory.Change {
	t.Helper()
	e.Actor, e.Reason = "tester", "a test"
	editor := directory.Editor{Source: source}
	change, err := editor.Apply(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

func now() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }

// fetch waits until the directory has read the record of a client, and returns the record.
func fetch(t *testing.T, d *directory.Directory, kind, id string) *policy.ClientRecord {
	t.Helper()
	for range 50 {
		if record, ok := d.Find(kind, id, now()); ok {
			return record
		}
		d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: kind, ID: id}})
	}
	t.Fatalf("%s:%s is not found", kind, id)
	return nil
}

// TestEditsAreInForce tests that each change soon takes effect for a remembered client, with or
// without a record, and for a network.
func TestEditsAreInForce(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		d := open(t, directory.Options{Source: source})
		if r := fetch(t, d, "user", "ann"); r != nil {
			t.Fatalf("before any change: %+v", r)
		}
		for _, c := range []struct {
			edit directory.Edit
			want func(r *policy.ClientRecord) bool
		}{
			{directory.Edit{Action: directory.ActionSetTier, Tier: "gold"}, func(r *policy.ClientRecord) bool { return r != nil && r.Tier == "gold" }},
			{directory.Edit{Action: directory.ActionBlock, Until: time.Now().Add(time.Hour)}, func(r *policy.ClientRecord) bool {
				return r != nil && r.Blocked && r.Tier == "gold"
			}},
			{directory.Edit{Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"7/1m"}}, func(r *policy.ClientRecord) bool {
				set, ok := r.Overrides.Of("api")
				return ok && set.Limits[0].Count() == 7
			}},
			{directory.Edit{Action: directory.ActionUnblock}, func(r *policy.ClientRecord) bool { return !r.Blocked }},
			{directory.Edit{Action: directory.ActionForget}, func(r *policy.ClientRecord) bool { return r == nil }},
		} {
			c.edit.Client = "user:ann"
			edit(t, source, c.edit)
			eventually.Until(t, 20*time.Second, c.edit.String()+" is in force", func() bool {
				r, ok := d.Find("user", "ann", now())
				return ok && c.want(r)
			})
		}
		edit(t, source, directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock})
		edit(t, source, directory.Edit{Client: "ip:192.0.2.7", Action: directory.ActionExempt})
		eventually.Until(t, 20*time.Second, "the longest network counts", func() bool {
			one, other := d.FindAddr(netip.MustParseAddr("192.0.2.7"), now()), d.FindAddr(netip.MustParseAddr("192.0.2.8"), now())
			return one != nil && one.Exempt && !one.Blocked && other != nil && other.Blocked
		})
		if r := d.FindAddr(netip.MustParseAddr("192.0.3.1"), now()); r != nil {
			t.Errorf("an address of no network has %+v", r)
		}
	})
}

// TestNetworksAreInForceAtOnce tests that a blocked network is blocked from the first request on.
func TestNetworksAreInForceAtOnce(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		edit(t, source, directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock})
		d := open(t, directory.Options{Source: source})
		if r := d.FindAddr(netip.MustParseAddr("192.0.2.7"), now()); r == nil || !r.Blocked {
			t.Errorf("an address of the network: %+v", r)
		}
	})
}

// TestEndedPartsHaveNoForce tests that a part of a record has no effect after its end, although no
// change is written.
func TestEndedPartsHaveNoForce(t *testing.T) {
	source := new(directory.Memory)
	end := time.Now().Add(time.Hour)
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock, Until: end})
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionSetLimits, Rule: "*", Limits: []string{"7/1m"}, Until: end.Add(time.Hour)})
	d := open(t, directory.Options{Source: source})
	fetch(t, d, "user", "ann")
	micros := counter.Micros(end.UnixMicro())
	for _, c := range []struct {
		at              counter.Micros
		blocked, limits bool
	}{{micros - 1, true, true}, {micros, false, true}, {micros + counter.Hour - 1, false, true}, {micros + counter.Hour, false, false}} {
		r, ok := d.Find("user", "ann", c.at)
		if !ok || r.Blocked != c.blocked || (r.Overrides != nil) != c.limits {
			t.Errorf("%d µs after the end: %+v, %v", c.at-micros, r, ok)
		}
	}
}

// TestConcurrentEditsAreKept tests that edits of one record by several editors are all made, and
// are all in the history.
func TestConcurrentEditsAreKept(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		const editors = 12
		var group sync.WaitGroup
		for i := range editors {
			group.Go(func() {
				for range 20 {
					_, err := (&directory.Editor{Source: source}).Apply(t.Context(), directory.Edit{Client: "user:ann", Actor: "x", Reason: "y",
						Action: directory.ActionSetLimits, Rule: fmt.Sprintf("rule-%d", i), Limits: []string{"7/1m"}})
					if err == nil {
						return
					}
				}
				t.Error("an edit was never made")
			})
		}
		group.Wait()
		_, r, err := (&directory.Editor{Source: source}).Look(t.Context(), "user:ann")
		if err != nil || len(r.Limits) != editors {
			t.Errorf("%d limits of %d, %v", len(r.Limits), editors, err)
		}
		name := policy.ClientName{Kind: "user", ID: "ann"}
		if all, err := source.History(t.Context(), name, 100); err != nil || len(all) != editors || all[0].Actor != "x" || all[0].Client != name {
			t.Errorf("%d entries of %d, %v", len(all), editors, err)
		}
	})
}

// TestNames tests that a client has the same name here as in the keys of counters. This includes
// tenants, and clients with a long identifier, which are named by its hash.
func TestNames(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for text, want := range map[string]string{"user:a:b": "user:a:b", "tenant:t": "tenant:t", "user-sha256:" + hash: "user-sha256:" + hash,
		"tenant-sha256:" + hash: "tenant-sha256:" + hash, "header.X-User:Ann": "header.x-user:Ann", "ip:192.0.2.9/24": "ip:192.0.2.0/24",
		"ip:2001:DB8::1": "ip:2001:db8::1", "user:" + strings.Repeat("x", 300): policy.IdentityOf("user", strings.Repeat("x", 300)).Kind + ":" +
			policy.IdentityOf("user", strings.Repeat("x", 300)).ID} {
		if got, err := directory.ParseName(text); err != nil || got.String() != want {
			t.Errorf("%.40q is %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestBadEdits tests that an invalid edit is not made, and that its error gives the reason.
func TestBadEdits(t *testing.T) {
	source := new(directory.Memory)
	for want, e := range map[string]directory.Edit{
		"has no form KIND:ID":    {Client: "ann", Action: directory.ActionBlock},
		"is of an unknown kind":  {Client: "usr:ann", Action: directory.ActionBlock},
		"neither an address":     {Client: "ip:nowhere", Action: directory.ActionBlock},
		"is unknown; there are":  {Client: "user:ann", Action: "blok"},
		"tier is missing":        {Client: "user:ann", Action: directory.ActionSetTier},
		"tier does not go with":  {Client: "user:ann", Action: directory.ActionBlock, Tier: "gold"},
		"until does not go with": {Client: "user:ann", Action: directory.ActionSetTier, Tier: "gold", Until: time.Now().Add(time.Hour)},
		"in the future: it is ":  {Client: "user:ann", Action: directory.ActionBlock, Until: time.Now().Add(-time.Hour)},
		"is not blocked":         {Client: "user:ann", Action: directory.ActionUnblock},
		`"5 per minute"`:         {Client: "user:ann", Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"5 per minute"}},
		"control character":      {Client: "user:ann", Action: directory.ActionNote, Note: "a\nb"},
		`"a\u009b2J" has a cont`: {Client: "user:ann", Action: directory.ActionNote, Note: "a\u009b2J"}, // characters that terminals obey
		"is not UTF-8":           {Client: "user:ann\xff", Action: directory.ActionBlock},
	} {
		e.Actor, e.Reason = "x", "y"
		if _, err := (&directory.Editor{Source: source}).Apply(t.Context(), e); !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", e, err, want)
		}
	}
	if all, _ := source.History(t.Context(), policy.ClientName{}, 10); len(all) != 0 {
		t.Errorf("the history has %v", all)
	}
}

// TestARedisThatIsAway tests that remembered records stay in force while Redis is away, and that
// new clients have no record.
func TestARedisThatIsAway(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
	d := open(t, directory.Options{Source: source})
	fetch(t, d, "user", "ann")
	server.Kill()
	for range 3 {
		d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: "user", ID: "bob"}})
	}
	if r, ok := d.Find("user", "ann", now()+400*counter.Second); !ok || !r.Blocked {
		t.Errorf("a remembered client: %+v, %v", r, ok)
	}
	if r, ok := d.Find("user", "bob", now()); ok || r != nil || d.Figures().Undirected.Load() != 3 {
		t.Errorf("a new client: %+v, %v, %d undirected", r, ok, d.Figures().Undirected.Load())
	}
}

// TestARedisThatHangs tests that a request whose deadline is shorter than the timeout of a read is
// decided without a record while Redis does not answer. Such a request is not denied. Only requests
// before the first failed read may be denied.
func TestARedisThatHangs(t *testing.T) {
	server := redistest.Start(t)
	d := open(t, directory.Options{Source: inRedis(t, server.URL()), Timeout: 300 * time.Millisecond})
	fetch(t, d, "user", "ann")
	server.Pause()
	defer server.Resume()
	eventually.Until(t, 20*time.Second, "a read has failed", func() bool {
		d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: "user", ID: "bob"}})
		return d.Figures().Failures.Load() > 0
	})
	before, reads := d.Figures().Overloads.Load(), d.Figures().Reads.Load()
	eventually.Until(t, 20*time.Second, "Redis is tried again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		return !d.Fetch(ctx, 0, []policy.ClientName{{Kind: "user", ID: "bob"}}) || d.Figures().Reads.Load() > reads+1
	})
	if n := d.Figures().Overloads.Load() - before; n != 0 {
		t.Errorf("%d requests are denied as in an overload", n)
	}
}

// TestFetchAll tests that the clients of several requests are read in one call, and that requests
// whose clients exceed the bound of their source are reported as an overload.
func TestFetchAll(t *testing.T) {
	memory := new(directory.Memory)
	edit(t, memory, directory.Edit{Client: "user:u7", Action: directory.ActionBlock})
	source := &counting{Source: memory, gate: make(chan struct{})}
	close(source.gate)
	d := open(t, directory.Options{Source: source, Timeout: time.Minute})
	requests := make([]directory.Unknown, 64)
	for i := range requests {
		requests[i] = directory.Unknown{Source: uint32(i), Names: []policy.ClientName{{Kind: "user", ID: fmt.Sprint("u", i)}, {Kind: "tenant", ID: "t"}}}
	}
	d.FetchAll(t.Context(), requests)
	// Find reads stale records again. All records become stale when the directory begins to follow
	// its source.
	reads, names := source.reads.Load(), source.names.Load()
	for i := range requests {
		r, ok := d.Find("user", fmt.Sprint("u", i), now())
		if blocked := r != nil && r.Blocked; !ok || requests[i].Overload || blocked != (i == 7) {
			t.Errorf("client %d: %+v, %v, overload %v", i, r, ok, requests[i].Overload)
		}
	}
	if reads != 1 || names != 65 {
		t.Errorf("%d reads of %d clients", reads, names)
	}
}

// TestARedisThatLostItsRecords tests that remembered records stay in force when Redis is emptied,
// and that they lose their force as soon as an operator has begun a new directory.
func TestARedisThatLostItsRecords(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	for _, client := range []string{"user:ann", "ip:192.0.2.0/24"} {
		edit(t, source, directory.Edit{Client: client, Action: directory.ActionBlock})
	}
	d := open(t, directory.Options{Source: source})
	fetch(t, d, "user", "ann")
	addr := netip.MustParseAddr("192.0.2.1")
	eventually.Until(t, 20*time.Second, "the network is known", func() bool { return d.FindAddr(addr, now()) != nil })
	server.Client().FlushAll(t.Context())
	before := d.Figures().Reads.Load()
	eventually.Until(t, 20*time.Second, "the record is read again", func() bool {
		d.Find("user", "ann", now()+400*counter.Second) // the record is no longer fresh
		return d.Figures().Reads.Load() > before && d.Figures().Undirected.Load() > 0
	})
	if r, ok := d.Find("user", "ann", now()); !ok || r == nil || !r.Blocked || d.FindAddr(addr, now()) == nil {
		t.Fatalf("after Redis was emptied: %+v, %v", r, ok)
	}
	edit(t, source, directory.Edit{Client: "user:bob", Action: directory.ActionSetTier, Tier: "gold"})
	eventually.Until(t, 20*time.Second, "the new directory alone is in force", func() bool {
		r, ok := d.Find("user", "ann", now()+400*counter.Second)
		return ok && r == nil
	})
}

// TestGarbageRecords tests that an invalid record, such as one that was written by hand, has no
// effect, is counted, and causes no error for a client.
func TestGarbageRecords(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	log := new(eventually.Journal)
	d := open(t, directory.Options{Source: source, Logger: log.Logger()})
	for i, text := range []string{"", "null x", "[]", `{"tier":5}`, `{"v":2}`, `{"tire":"gold"}`, `{"limits":{"api":{"limits":["5 apples"]}}}`,
		strings.Repeat("x", directory.RecordBytesMax+1)} {
		id := fmt.Sprint(i)
		server.Client().Set(t.Context(), "rl1:~who:user:"+id, text, 0)
		if r := fetch(t, d, "user", id); r != nil && (r.Blocked || r.Tier != "") || d.Figures().Bad.Load() < uint64(i+1) {
			t.Errorf("%.20q: %+v, %d are bad", text, r, d.Figures().Bad.Load())
		}
	}
	server.Client().LPush(t.Context(), "rl1:~who:user:list", "x")
	if r := fetch(t, d, "user", "list"); r != nil && r.Blocked || d.Figures().Bad.Load() < 9 {
		t.Errorf("a list: %+v, %d are bad", r, d.Figures().Bad.Load())
	}
	if !strings.Contains(log.String(), "has no force") {
		t.Errorf("the log says %q", log.String())
	}
}

// TestMemoryIsBounded tests that made-up clients do not raise the number of remembered clients
// above its bound, and that they do not evict a client that is used all the time.
func TestMemoryIsBounded(t *testing.T) {
	source := new(directory.Memory)
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
	d := open(t, directory.Options{Source: source, ClientsMax: 640})
	fetch(t, d, "user", "ann")
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionSetTier, Tier: "gold"})
	eventually.Until(t, 20*time.Second, "the directory follows its source", func() bool {
		r, ok := d.Find("user", "ann", now())
		return ok && r.Tier == "gold"
	})
	reads := d.Figures().Reads.Load()
	clients := max(2_000, racescale.Fewer(20_000))
	for i := range clients {
		fetch(t, d, "user", fmt.Sprint(i))
		if r, ok := d.Find("user", "ann", now()); !ok || !r.Blocked {
			t.Fatalf("after %d clients: %+v, %v", i, r, ok)
		}
	}
	if n := d.Len(); n > 640 {
		t.Errorf("%d clients are remembered", n)
	}
	if n := d.Figures().Reads.Load() - reads; n > uint64(clients) {
		t.Errorf("%d reads", n)
	}
}

// counting is a source that counts its reads. Each read waits for a signal.
type counting struct {
	directory.Source
	reads, names atomic.Int64
	gate         chan struct{}
}

func (c *counting) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	c.reads.Add(1)
	c.names.Add(int64(len(names)))
	<-c.gate
	return c.Source.Read(ctx, names, texts)
}

// lateSource is a source whose next reads time out. Their number is times, and their error wraps
// err.
type lateSource struct {
	directory.Source
	times atomic.Int64
	err   error
}

func (l *lateSource) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	if l.times.Add(-1) >= 0 {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", l.err, ctx.Err())
	}
	return l.Source.Read(ctx, names, texts)
}

// TestALateReadIsRepeated tests that a blocked client is not admitted if the read of its record
// times out twice. A client can cause such timeouts by keeping the process busy.
func TestALateReadIsRepeated(t *testing.T) {
	source := &lateSource{Source: new(directory.Memory), err: directory.ErrSource}
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
	d := open(t, directory.Options{Source: source, Timeout: 10 * time.Millisecond})
	source.times.Store(2)
	if !d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: "user", ID: "ann"}}) {
		t.Error("the client is not read")
	}
	if r, ok := d.Find("user", "ann", now()); !ok || !r.Blocked {
		t.Errorf("the blocked client: %+v, %v", r, ok)
	}
	if f := d.Figures(); f.Undirected.Load()+f.Failures.Load() != 0 {
		t.Errorf("%d undirected, %d failures", f.Undirected.Load(), f.Failures.Load())
	}
}

// TestABusySourceIsNotAway tests that a client is not treated as one without a record while the
// source works but is too slow.
func TestABusySourceIsNotAway(t *testing.T) {
	source := &lateSource{Source: new(directory.Memory), err: directory.ErrBusy}
	edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
	d := open(t, directory.Options{Source: source, Timeout: 10 * time.Millisecond})
	source.times.Store(3)
	ann := []policy.ClientName{{Kind: "user", ID: "ann"}}
	if d.Fetch(t.Context(), 0, ann) || !d.Works() {
		t.Errorf("the client counts as one without a record; the source works: %v", d.Works())
	}
	// On a busy machine, Fetch may return before the late reads have ended.
	eventually.Until(t, 20*time.Second, "the client is read", func() bool { return d.Fetch(t.Context(), 0, ann) })
	if r, ok := d.Find("user", "ann", now()); !ok || !r.Blocked || d.Figures().Undirected.Load() != 0 {
		t.Errorf("the blocked client: %+v, %v, %d undirected", r, ok, d.Figures().Undirected.Load())
	}
}

// TestNewClientsShareReads tests that clients that arrive during a read are read together in the
// next one, each once.
func TestNewClientsShareReads(t *testing.T) {
	const clients = 100
	source := &counting{Source: new(directory.Memory), gate: make(chan struct{})}
	d := open(t, directory.Options{Source: source, Timeout: time.Minute})
	var group sync.WaitGroup
	for i := range 3 * clients {
		group.Go(func() { d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: "user", ID: fmt.Sprint(i % clients)}}) })
	}
	open := sync.OnceFunc(func() { close(source.gate) })
	defer open() // otherwise closing the directory would wait for the read
	eventually.Until(t, 20*time.Second, "all wait", func() bool { return int(source.names.Load())+d.Waiting() >= clients })
	open()
	group.Wait()
	if reads, names := source.reads.Load(), source.names.Load(); reads > 3 || names > 2*clients {
		t.Errorf("%d reads of %d clients, for %d", reads, names, clients)
	}
}

// TestAFloodOfNewClientsIsDeniedNotPassed sends requests for more clients than may wait from one
// source of requests. Requests beyond this bound are denied, and clients of other sources are read
// meanwhile. While the source of the records works, no client is treated as one without a record.
func TestAFloodOfNewClientsIsDeniedNotPassed(t *testing.T) {
	memory := new(directory.Memory)
	edit(t, memory, directory.Edit{Client: "user:blocked", Action: directory.ActionBlock})
	source := &counting{Source: memory, gate: make(chan struct{})}
	d := open(t, directory.Options{Source: source, Timeout: time.Minute})
	release := sync.OnceFunc(func() { close(source.gate) })
	defer release()
	var group sync.WaitGroup
	var denied atomic.Int64
	const flood = 3000 // these are more than may wait from one source, but fewer than may wait in all
	for i := range flood {
		group.Go(func() {
			if !d.Fetch(t.Context(), 7, []policy.ClientName{{Kind: "user", ID: fmt.Sprint(i)}}) {
				denied.Add(1)
			}
		})
	}
	eventually.Until(t, 20*time.Second, "the flood waits", func() bool { return denied.Load() > 0 })
	other := make(chan bool)
	go func() { other <- d.Fetch(t.Context(), 8, []policy.ClientName{{Kind: "user", ID: "blocked"}}) }()
	eventually.Until(t, 20*time.Second, "the other source waits too", func() bool { return d.Waits("user", "blocked") })
	release()
	if !<-other {
		t.Error("a client of another source is not read")
	}
	if r, ok := d.Find("user", "blocked", now()); !ok || !r.Blocked {
		t.Errorf("the blocked client: %+v, %v", r, ok)
	}
	group.Wait()
	if f := d.Figures(); f.Undirected.Load() != 0 || f.Overloads.Load() != uint64(denied.Load()) {
		t.Errorf("%d undirected, %d overloads of %d", f.Undirected.Load(), f.Overloads.Load(), denied.Load())
	}
}
