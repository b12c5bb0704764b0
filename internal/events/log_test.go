// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/seed"
)

// clock holds the time of a test, and the calls that the log has scheduled.
type clock struct {
	now time.Time
	due []func()
}

func (c *clock) options() Options {
	c.now = time.Unix(1_800_000_000, 0)
	return Options{Node: "n1", Now: func() time.Time { return c.now }, After: func(_ time.Duration, f func()) { c.due = append(c.due, f) }}
}

// clock.second advances the time by a second, and makes the scheduled calls.
func (c *clock) second() {
	c.now = c.now.Add(time.Second)
	due := c.due
	c.due = nil
	for _, f := range due {
		f()
	}
}

// keptEvents is a sink that keeps the events it receives. If room is not negative, it accepts that
// many events and then fails.
type keptEvents struct {
	all  []Event
	room int
}

func (k *keptEvents) Write(all []Event) (int, error) {
	n := len(all)
	if k.room >= 0 {
		n = min(n, k.room)
		k.room -= n
	}
	k.all = append(k.all, all[:n]...)
	if n < len(all) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

// hand passes a decision to the log as a front does.
func hand(l *Log, k Key, d Details) {
	if !l.Count(&k, 1) {
		l.Add(&k, &d, 1)
	}
}

var allDenied = policy.Events{Denied: true}

// TestRegion: events name the region of the process, including those that are not decisions.
func TestRegion(t *testing.T) {
	var c clock
	l, sink := New(c.options()), &keptEvents{room: -1}
	defer l.Attach(sink)()
	l.Want()
	l.SetRegion("eu")
	l.Note(Event{Kind: KindDegraded})
	hand(l, Key{Policy: "shop"}, Details{Settings: allDenied, Denied: true})
	c.second()
	for _, e := range sink.all {
		if text := string(e.AppendJSON(nil)); e.Region != "eu" || !strings.Contains(text, `,"region":"eu",`) {
			t.Errorf("event %s", text)
		}
	}
	if len(sink.all) != 2 {
		t.Errorf("%d events", len(sink.all))
	}
}

// TestAggregation compares the events of a random workload with a slow model. The model is a list
// of all decisions, in which equal decisions of one second are combined into one event.
func TestAggregation(t *testing.T) {
	random := seed.Random(t)
	var c clock
	l, sink := New(c.options()), &keptEvents{room: -1}
	defer l.Attach(sink)()
	total := uint64(0)
	for range 50 {
		model := map[string]uint64{}
		for range random.IntN(3000) {
			d := Details{Settings: allDenied, Denied: true, Status: 429, Method: "GET"}
			k := Key{Policy: "shop", Version: pick(random, "v1", "v2"), Rule: pick(random, "api", "search", ""),
				Decision: pick(random, "denied", "blocked"), Kind: pick(random, "ip", "user"), Client: fmt.Sprint(random.IntN(60))}
			hand(l, k, d)
			model[fmt.Sprintf("%s %s %s %s:%s", k.Version, k.Rule, k.Decision, k.Kind, k.Client)]++
			total++
		}
		sink.all = nil
		c.second()
		got, beyond := map[string]uint64{}, uint64(0)
		for _, e := range sink.all {
			if e.Kind == KindDropped {
				beyond += e.Count
				continue
			}
			name := fmt.Sprintf("%s %s %s %s", e.Version, e.Rule, e.Decision, e.Client)
			if _, twice := got[name]; twice {
				t.Fatalf("%s is two events of one second", name)
			}
			got[name] = e.Count
		}
		if len(model) <= EventsMax && !maps.Equal(got, model) || beyond > 0 && len(model) <= EventsMax {
			t.Fatalf("%d decisions dropped, events %v, want %v", beyond, got, model)
		}
		for name, count := range got {
			if count > model[name] {
				t.Fatalf("%s: %d of %d decisions", name, count, model[name])
			}
		}
		if sum(sink.all) != sumOf(model) || len(got) > EventsMax {
			t.Fatalf("%d events of %d decisions, want those of %d", len(got), sum(sink.all), sumOf(model))
		}
	}
	if f := l.Figures(); f.Written == 0 || total == 0 {
		t.Error("nothing was written")
	}
}

func pick(r *rand.Rand, among ...string) string { return among[r.IntN(len(among))] }

func sum(all []Event) (n uint64) {
	for _, e := range all {
		n += e.Count
	}
	return n
}

func sumOf(model map[string]uint64) (n uint64) {
	for count := range maps.Values(model) {
		n += count
	}
	return n
}

// TestBound: beyond EventsMax different decisions a second, new decisions are counted and reported
// in one event, and decisions equal to earlier ones still count in their events.
func TestBound(t *testing.T) {
	var c clock
	l, sink := New(c.options()), &keptEvents{room: -1}
	defer l.Attach(sink)()
	for i := range 3 * EventsMax {
		hand(l, Key{Decision: "denied", Kind: "user", Client: fmt.Sprint(i)}, Details{Settings: allDenied, Denied: true})
	}
	hand(l, Key{Decision: "denied", Kind: "user", Client: "0"}, Details{Settings: allDenied, Denied: true})
	c.second()
	last := sink.all[len(sink.all)-1]
	if len(sink.all) != EventsMax+1 || last.Kind != KindDropped || last.Count != 2*EventsMax || last.Reason != "rate" {
		t.Errorf("%d events, the last one %+v", len(sink.all), last)
	}
	if f := l.Figures(); f.Beyond != 2*EventsMax || sum(sink.all) != 3*EventsMax+1 {
		t.Errorf("%+v", f)
	}
	sink.all = nil
	hand(l, Key{Decision: "denied", Kind: "user", Client: "new"}, Details{Settings: allDenied, Denied: true})
	c.second()
	if len(sink.all) != 1 || sink.all[0].Client != "user:new" {
		t.Errorf("in the next second: %+v", sink.all)
	}
}

// TestFailingSink: the events that a failing sink does not write are counted, and their number is
// written as soon as the sink works again, even without further denials.
func TestFailingSink(t *testing.T) {
	var c clock
	o, lost := Options{}, uint64(0)
	o = c.options()
	o.Failed = func(_ error, n uint64) { lost += n }
	l, sink := New(o), &keptEvents{room: 2}
	defer l.Attach(sink)()
	for i := range 10 {
		for range 3 {
			hand(l, Key{Decision: "denied", Kind: "user", Client: fmt.Sprint(i)}, Details{Settings: allDenied, Denied: true})
		}
	}
	c.second()
	if len(sink.all) != 2 || lost != 24 || l.Figures().Unwritten != 24 {
		t.Fatalf("%d events, %d lost, %+v", len(sink.all), lost, l.Figures())
	}
	c.second() // still full
	sink.room = -1
	c.second()
	last := sink.all[len(sink.all)-1]
	if last.Kind != KindDropped || last.Reason != "sink" || last.Count != 24 || sum(sink.all) != 30 {
		t.Errorf("%+v", sink.all)
	}
	if len(c.due) != 0 {
		t.Error("a log with nothing to write goes on")
	}
}

// blocking is a sink that blocks until it is released.
type blocking struct {
	keptEvents
	begun, release chan struct{}
	once           sync.Once
}

func (b *blocking) Write(all []Event) (int, error) {
	b.once.Do(func() { close(b.begun) })
	<-b.release
	return b.keptEvents.Write(all)
}

// TestSinkThatBlocks: decisions are recorded while a sink blocks, and none is lost.
func TestSinkThatBlocks(t *testing.T) {
	var c clock
	l := New(c.options())
	sink := &blocking{keptEvents: keptEvents{room: -1}, begun: make(chan struct{}), release: make(chan struct{})}
	detach := l.Attach(sink)
	k, d := Key{Decision: "denied", Kind: "user", Client: "ada"}, Details{Settings: allDenied, Denied: true}
	hand(l, k, d)
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		l.flush()
	}()
	<-sink.begun
	for range 1000 {
		hand(l, k, d) // this would hang if it waited for the sink
	}
	close(sink.release)
	<-flushed
	detach()
	if len(sink.all) != 2 || sum(sink.all) != 1001 {
		t.Errorf("%+v", sink.all)
	}
}

// TestConcurrent: no decision is lost or counted twice while seconds end.
func TestConcurrent(t *testing.T) {
	l, sink := New(Options{}), &keptEvents{room: -1}
	detach := l.Attach(sink)
	const callers, each = 8, 20_000
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			for i := range each {
				hand(l, Key{Decision: "denied", Kind: "user", Client: fmt.Sprint(i % (50 + n))}, Details{Settings: allDenied, Denied: true})
				if i%1000 == 0 {
					l.flush()
				}
			}
		})
	}
	all.Wait()
	detach()
	if got := sum(sink.all); got != callers*each {
		t.Errorf("%d decisions, want %d", got, callers*each)
	}
}

// TestTimer: without a given clock, events are written after a second.
func TestTimer(t *testing.T) {
	l, sink := New(Options{}), &keptEvents{room: -1}
	defer l.Attach(sink)()
	hand(l, Key{Decision: "denied", Kind: "user", Client: "ada"}, Details{Settings: allDenied, Denied: true})
	eventually.Until(t, 10*time.Second, "the event is written", func() bool { return l.Figures().Written == 1 })
}

// TestSinks: the log writes to the sink that was attached last. After that sink is detached, the
// log writes to the previous one.
func TestSinks(t *testing.T) {
	var c clock
	l, first, second := New(c.options()), &keptEvents{room: -1}, &keptEvents{room: -1}
	k, d := Key{Decision: "denied", Kind: "user", Client: "ada"}, Details{Settings: allDenied, Denied: true}
	hand(l, k, d) // no sink is attached: the denial is only remembered
	c.second()
	endFirst := l.Attach(first)
	endSecond := l.Attach(second)
	hand(l, k, d)
	c.second()
	hand(l, k, d)
	endSecond() // this writes the gathered events
	hand(l, k, d)
	c.second()
	endFirst()
	hand(l, k, d)
	c.second()
	if len(second.all) != 2 || len(first.all) != 1 || len(l.Recent("user:ada")) != 5 {
		t.Errorf("first %d, second %d, remembered %d", len(first.all), len(second.all), len(l.Recent("user:ada")))
	}
}

// TestNotes: an outage is reported as an event only if a policy reports events.
func TestNotes(t *testing.T) {
	var c clock
	l, sink := New(c.options()), &keptEvents{room: -1}
	defer l.Attach(sink)()
	l.Note(Event{Kind: KindDegraded, State: "began"})
	c.second()
	l.Want()
	for range 2 * notesMax {
		l.Note(Event{Kind: KindDegraded, State: "ended", Seconds: 1.5, Count: 3})
	}
	c.second()
	if len(sink.all) != notesMax || string(sink.all[0].AppendJSON(nil)) !=
		`{"time":"2027-01-15T08:00:01.000Z","kind":"degraded","state":"ended","node":"n1","seconds":1.5,"count":3}` {
		t.Errorf("%d events, %s", len(sink.all), sink.all[0].AppendJSON(nil))
	}
	var off *Log
	off.Note(Event{})
	if off.Figures() != (Figures{}) || off.Recent("user:ada") != nil {
		t.Error("a nil log has something")
	}
}

// TestRecent: the latest denials of a client are found by its name, the newest first, in bounded
// memory.
func TestRecent(t *testing.T) {
	var c clock
	l := New(c.options())
	for i := range 2 * recentEach {
		hand(l, Key{Rule: fmt.Sprint(i), Decision: "denied", Kind: "user", Client: "ada"}, Details{Settings: allDenied, Denied: true, Path: "/api/*"})
		hand(l, Key{Decision: "allowed", Kind: "user", Client: "bob"}, Details{Settings: policy.Events{AdmittedPPM: 1000}})
		c.second()
	}
	got := l.Recent("user:ada")
	if len(got) != recentEach || got[0].Rule != "15" || got[0].Path != "/api/*" || got[recentEach-1].Rule != "8" || l.Recent("user:bob") != nil {
		t.Errorf("%+v", got)
	}
	for i := range RecentClientsMax {
		hand(l, Key{Decision: "denied", Kind: "user", Client: fmt.Sprint(i)}, Details{Settings: allDenied, Denied: true})
		if i%500 == 0 {
			c.second()
		}
	}
	c.second()
	if l.Recent("user:ada") != nil || len(l.recent.clients) != RecentClientsMax || l.recent.order.Len() != RecentClientsMax {
		t.Errorf("%d clients are remembered", len(l.recent.clients))
	}
	prefix := policy.Events{Denied: true, Address: policy.AddressPrefix}
	hand(l, Key{Decision: "denied", Kind: "ip", Client: "192.0.2.7"}, Details{Settings: prefix, Denied: true})
	c.second()
	if len(l.Recent("ip:192.0.2.7")) != 1 || l.Recent("ip:192.0.2.7")[0].Client != "ip:192.0.2.0/24" {
		t.Error("the denials of an address of which only the prefix is shown are not found")
	}
}

// TestAddresses: a policy decides how much of an address is shown, even if the address is the
// client.
func TestAddresses(t *testing.T) {
	for _, test := range []struct {
		shown          policy.AddressShown
		kind, client   string
		address        string
		wantClient, ip string
	}{
		{policy.AddressFull, "ip", "192.0.2.7", "192.0.2.7", "ip:192.0.2.7", "192.0.2.7"},
		{policy.AddressPrefix, "ip", "192.0.2.7", "192.0.2.7", "ip:192.0.2.0/24", "192.0.2.0/24"},
		{policy.AddressNone, "ip", "192.0.2.7", "192.0.2.7", "ip", ""},
		{policy.AddressFull, "ip", "2001:db8:1:2::/64", "2001:db8:1:2::9", "ip:2001:db8:1:2::/64", "2001:db8:1:2::9"},
		{policy.AddressPrefix, "ip", "2001:db8:1:2::/64", "2001:db8:1:2::9", "ip:2001:db8:1::/48", "2001:db8:1::/48"},
		{policy.AddressPrefix, "ip", "::ffff:192.0.2.7", "::ffff:192.0.2.7", "ip:192.0.2.0/24", "192.0.2.0/24"},
		{policy.AddressPrefix, "ip", "unknown", "", "ip", ""},
		{policy.AddressPrefix, "api_key", "acme", "", "api_key:acme", ""},
		{policy.AddressNone, "user", "192.0.2.7", "192.0.2.7", "user:192.0.2.7", ""},
		{policy.AddressFull, "", "", "", "", ""},
	} {
		var c clock
		l, sink := New(c.options()), &keptEvents{room: -1}
		d := Details{Settings: policy.Events{Denied: true, Address: test.shown}, Denied: true}
		d.Address, _ = netip.ParseAddr(test.address)
		detach := l.Attach(sink)
		hand(l, Key{Decision: "denied", Kind: test.kind, Client: test.client}, d)
		detach()
		if got := sink.all[0]; got.Client != test.wantClient || got.IP != test.ip {
			t.Errorf("%v %s %s: client %q, ip %q", test.shown, test.client, test.address, got.Client, got.IP)
		}
	}
}

// TestLongNames: clients whose names are shortened in events are still counted as different
// clients.
func TestLongNames(t *testing.T) {
	var c clock
	l, sink := New(c.options()), &keptEvents{room: -1}
	defer l.Attach(sink)()
	long := strings.Repeat("ä", textBytesMax)
	for _, name := range []string{long, long + "a", long + "b", long} {
		hand(l, Key{Decision: "denied", Kind: "user", Client: name}, Details{Settings: allDenied, Denied: true, Path: long, Method: long, Tier: long})
	}
	c.second()
	if len(sink.all) != 3 || sum(sink.all) != 4 {
		t.Errorf("%d events of %d decisions", len(sink.all), sum(sink.all))
	}
	for _, e := range sink.all {
		if line := e.AppendJSON(nil); !json.Valid(line) || len(line) > LineBytesMax || !strings.Contains(string(line), ellipsis) {
			t.Errorf("%d bytes: %s", len(line), line)
		}
	}
}

// TestAllocations: a decision equal to an earlier one allocates nothing, nor does a client's first
// decision after the table has grown.
func TestAllocations(t *testing.T) {
	var c clock
	l := New(c.options())
	names := make([]string, 900)
	for i := range names {
		names[i] = fmt.Sprintf("client-%d", i)
	}
	d := Details{Settings: allDenied, Denied: true, Method: "GET", Path: "/api/*", Tier: "gold"}
	fill := func() {
		for _, name := range names {
			k := Key{Policy: "shop", Rule: "api", Decision: "denied", Kind: "user", Client: name}
			if !l.Count(&k, 1) {
				l.Add(&k, &d, 1)
			}
		}
	}
	for range 20 { // fills the pages of both halves of the table
		fill()
		l.flush()
	}
	if n := testing.AllocsPerRun(100, fill); n > 0 {
		t.Errorf("%v allocations for equal decisions", n)
	}
	table := l.table.Load()
	ended := func() {
		fill()
		for i := range table.shards {
			s := &table.shards[i]
			table.used.Add(-int64(s.now.used))
			s.now.used, s.now.slots = 0, [pageSlots]uint8{}
		}
	}
	ended()
	if n := testing.AllocsPerRun(100, ended); n > 0 {
		t.Errorf("%v allocations for 900 new events", n)
	}
}

func BenchmarkCount(b *testing.B) {
	l := New(Options{})
	k := Key{Policy: "shop", Version: "0123456789ab", Rule: "api", Decision: "denied", Kind: "api_key", Client: "acme-customer-1234"}
	hand(l, k, Details{Settings: allDenied, Denied: true})
	b.ReportAllocs()
	for b.Loop() {
		if !l.Count(&k, 1) {
			l.Add(&k, &Details{Settings: allDenied, Denied: true}, 1)
		}
	}
}

// FuzzJSON: for any input, an event is one line of valid JSON without control characters, and its
// fields are unchanged except for invalid UTF-8.
func FuzzJSON(f *testing.F) {
	f.Add("ada", "gold", "/api/*")
	f.Add("a\"b\\c\n\r\t\x00\x1b[2J\x7f\u009b", "\xff\xfe", "\u2028\u202e😀\U000e0001")
	f.Fuzz(func(t *testing.T, client, tier, path string) {
		e := Event{Time: time.Unix(0, 0), Kind: KindDenied, Client: client, Tier: tier, Path: path, Reason: client, Count: 1}
		line := e.AppendJSON(nil)
		if len(line) > LineBytesMax {
			t.Fatalf("%d bytes", len(line))
		}
		for _, r := range string(line) {
			if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x2028 && r <= 0x202e {
				t.Fatalf("%U is written as it is", r)
			}
		}
		var read struct{ Client, Tier, Path string }
		if err := json.Unmarshal(line, &read); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for want, got := range map[string]string{client: read.Client, tier: read.Tier, path: read.Path} {
			if len(want) <= textBytesMax && got != strings.ToValidUTF8(want, "\ufffd") && strings.ReplaceAll(got, "\ufffd", "") !=
				strings.ReplaceAll(strings.ToValidUTF8(want, ""), "\ufffd", "") {
				t.Fatalf("%q is read as %q", want, got)
			}
		}
	})
}
