// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestWhatIsToldIsBounded tests how units that another region reports are charged: only to counters
// of rules with across: gossip, to each counter at most its limit, and under the name of the region
// that reports them.
func TestWhatIsToldIsBounded(t *testing.T) {
	w := newWorld(t, seed.Random(t), "20/10s fixed_window", 2)
	p := w.places[0]
	handler := p.agent.Handler()
	p.agent.instant = w.now
	post := func(certificate string, text []byte) int {
		t.Helper()
		recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(text))
		request.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certtest.Region(certificate)}}
		handler.ServeHTTP(recorder, request)
		return recorder.Code
	}
	tell := func(from, name string, used int64) int {
		t.Helper()
		m := message{from: from, counters: []Told{{Name: name, Start: w.now, Used: used, Before: used}}}
		return post(from, m.encode())
	}
	name := func(limit, key string) string { return limit + "||" + key }
	for what, told := range map[string]string{
		"another rule":      name("20/10s fixed_window", namespace+"other:{user:ann}:10s:fw"),
		"another namespace": name("20/10s fixed_window", "rl1:m:api:{user:ann}:10s:fw"),
		"a token bucket":    name("20/10s token_bucket", namespace+"api:{user:ann}:10s:tb"),
		"another window":    name("20/20s fixed_window", w.key),
		"no limit":          name("many", w.key),
		"no calendar":       name("20/day fixed_window", namespace+"api:{user:ann}:day:fw"),
		"no bounds":         "20/day fixed_window|4,3,2,1|" + namespace + "api:{user:ann}:day:fw",
		"no name":           "x",
	} {
		if code := tell("b", told, 5); code != http.StatusOK {
			t.Errorf("%s: status %d", what, code)
		}
	}
	if n := p.agent.invalid.Load(); n != 8 {
		t.Errorf("%d counters were rejected, want 8", n)
	}
	c := regionstore.Changed{Key: w.key, Limit: w.limit}
	for _, from := range []string{"a", "z", ""} { // the region itself, and strangers
		if code := tell(from, c.String(), 5); code != http.StatusForbidden {
			t.Errorf("a message of %q: status %d", from, code)
		}
	}
	pretended := message{from: "b", counters: []Told{{Name: c.String(), Start: w.now, Used: 5}}}
	if code := post("c", pretended.encode()); code != http.StatusForbidden {
		t.Errorf("an agent of c speaks for b: status %d", code)
	}
	if code := post("b", []byte("garbage")); code != http.StatusBadRequest {
		t.Errorf("garbage: status %d", code)
	}
	if keys := p.redis.Client().Keys(t.Context(), namespace+"*").Val(); len(keys) > 0 {
		t.Errorf("invalid messages have charged %q", keys)
	}
	if code := tell("b", c.String(), counter.CountMax); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	if got := p.redis.Client().Get(t.Context(), w.key).Val(); !strings.HasSuffix(got, " 20 0") {
		t.Errorf("a region that tells too much charges %q, want 20", got)
	}
	metrics := p.agent.Metrics(time.Now())
	for _, want := range []string{"charged_units_total 20\n", `age_seconds{region="b"} `, `heard_total{region="b"} 1` + "\n", `told_total{region="b"} 0`} {
		if !strings.Contains(metrics, "penstock_region_gossip_"+want) {
			t.Errorf("no %q in\n%s", want, metrics)
		}
	}
}

// TestOneAgentTells tests that of two agents of a region only one reports, and that the other takes
// over when the first is gone.
func TestOneAgentTells(t *testing.T) {
	w := newWorld(t, seed.Random(t), "20/10s fixed_window", 2)
	p := w.places[0]
	w.take(p, 3)
	w.tell(p)
	first, sent := p.agent, w.sent
	id := first.id
	p.agent = New(first.o)
	if w.tell(p); w.sent != sent {
		t.Errorf("both agents tell: %d messages after %d", w.sent, sent)
	}
	p.agent.id = id // as if the lock of the first had expired
	w.take(p, 2)
	w.tell(p)
	if w.sent != sent+1 || w.places[1].heard["a"][w.now] != 5 {
		t.Errorf("the second agent has sent %d messages, and the other region heard of %v", w.sent-sent, w.places[1].heard["a"])
	}
}

// TestACounterThatChangesAllTheTimeIsTold tests that a change does not move a counter behind others
// that were not read yet. Otherwise an agent that cannot keep up would never report that counter.
func TestACounterThatChangesAllTheTimeIsTold(t *testing.T) {
	w := newWorld(t, seed.Random(t), "20/10s fixed_window", 2)
	p := w.places[0]
	read := func(after int64, want ...string) int64 {
		t.Helper()
		own := p.agent.o.Policy()
		got, err := p.agent.page(t.Context(), &own, after)
		if err != nil || !slices.Equal(got.names, want) {
			t.Fatalf("read %q after %d, want %q, %v", got.names, after, want, err)
		}
		return got.last
	}
	w.mark(p, "busy", "b", "c")
	w.mark(p, "busy", "d", "busy")
	last := read(0, "busy", "b", "c", "d")
	w.mark(p, "c", "busy")
	w.mark(p, "e", "c")
	last = read(last, "c", "busy", "e") // what was read before has changed since
	read(last)
	read(0, "b", "d", "c", "busy", "e")
}

// TestAnOlderSetIsToldAgain tests that an agent reports all counters again if Redis no longer knows
// what the agent has read, for example after a restore.
func TestAnOlderSetIsToldAgain(t *testing.T) {
	w := newWorld(t, seed.Random(t), "20/10s fixed_window", 2)
	p := w.places[0]
	w.take(p, 3)
	w.tell(p)
	before := p.agent.o.Peers[0].told.Load()
	if w.tell(p); p.agent.o.Peers[0].told.Load() != before {
		t.Error("a counter is told again without reason")
	}
	if err := p.redis.Client().Set(t.Context(), regionstore.ReadKey, 5, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if w.tell(p); p.agent.o.Peers[0].told.Load() != before+1 {
		t.Error("an older set is not told again")
	}
	if w.tell(p); p.agent.o.Peers[0].told.Load() != before+1 {
		t.Error("an older set is told more than once")
	}
}

// TestCalendarsAreTold tests that a message names a calendar window by its boundaries, and that the
// reported units expire when the window ends.
func TestCalendarsAreTold(t *testing.T) {
	w := newWorld(t, seed.Random(t), "20/day fixed_window", 2)
	day := 24 * counter.Hour
	start := w.now - w.now%day
	from, to := w.places[0], w.places[1]
	c := regionstore.Changed{Key: w.key, Limit: w.limit, Bounds: &counter.Bounds{start - day, start, start + day, start + 2*day}}
	set := func(text string) {
		t.Helper()
		if err := from.redis.Client().Set(t.Context(), w.key, text, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		w.mark(from, c.String())
		w.tell(from)
	}
	text := func(used string) string { return fmt.Sprintf("%d %s 0", int64(start), used) }
	set(text("7"))
	set(text("9"))
	set(text("8")) // after a refund
	if got := to.redis.Client().Get(t.Context(), w.key).Val(); got != text("9") {
		t.Errorf("the counter is %q, want %q", got, text("9"))
	}
	w.now = start + day + counter.Hour
	c.Bounds = &counter.Bounds{start, start + day, start + 2*day, start + 3*day}
	start += day
	set(text("2"))
	if got := to.redis.Client().Get(t.Context(), w.key).Val(); got != text("2") {
		t.Errorf("the counter of the next day is %q, want %q", got, text("2"))
	}
	if expiry := to.redis.Client().PTTL(t.Context(), w.key).Val(); expiry < 24*time.Hour {
		t.Errorf("the counter expires after %s", expiry)
	}
}
