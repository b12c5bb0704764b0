// SPDX-License-Identifier: Apache-2.0

package filter

import (
	encoding "encoding/base64"
	"fmt"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// directedPolicy is the shop's policy with a directory, for users that a header names. /api is
// limited.
func directedPolicy(t *testing.T) corepolicy.Policy {
	t.Helper()
	p := shopPolicy(t, "2/1m fixed_window")
	p.Directory = true
	p.Identify = []corepolicy.Identify{{Kind: corepolicy.IdentifyHeader, Name: "X-User", Unverified: true}}
	return p
}

// patronFilter is a filter with the policy directedPolicy, and the answers of its bridge.
type patronFilter struct {
	*fakeEnvoy
	f     *Filter
	next  uint32
	field string // the header that names a client
}

func newPatron(t *testing.T) *patronFilter {
	t.Helper()
	e := newEnvoy(t)
	return &patronFilter{fakeEnvoy: e, f: withPolicy(t, e, directedPolicy(t)), field: "x-user"}
}

// addRecords adds the records of the address and of the user to an answer.
func addRecords(a wire.Answer, ttl counter.Micros, records ...*corepolicy.ClientRecord) wire.Answer {
	a.Verdict = &wire.Verdict{TTLMicros: int64(ttl)}
	var all []byte
	for _, r := range records {
		all = wire.AppendRecord(all, r)
	}
	a.Verdict.Records = string(all)
	return a
}

// patronFilter.ask sends a request of a user, and ends the turn if the request waits for the end of
// the turn.
func (p *patronFilter) ask(path, user string) (id uint32) {
	p.next++
	s := p.f.NewStream(p.next)
	if s.RequestHeaders(get(path, p.field, user)); s.state == arrived {
		p.f.decideArrivals()
	}
	return p.next
}

// status returns the status of the answer to a request.
func (p *patronFilter) status(id uint32) int {
	if r, denied := p.responses[id]; denied {
		return int(r.Status)
	}
	return 200
}

// wantDecided sends a request that the filter must decide without the bridge, and returns the
// status.
func (p *patronFilter) wantDecided(path, user string) int {
	p.t.Helper()
	id := p.ask(path, user)
	p.f.Flush()
	p.f.endTurns()
	if len(p.calls) > 0 {
		p.t.Fatalf("%s %s: the bridge is asked", path, user)
	}
	return p.status(id)
}

// wantAsked sends a request about which the filter must ask the bridge, answers the question, and
// returns the status.
func (p *patronFilter) wantAsked(path, user string, a wire.Answer) int {
	p.t.Helper()
	return p.wantAskedFor(path, user, 0, a)
}

// wantAskedFor is like wantAsked, but the answer arrives after the given time.
func (p *patronFilter) wantAskedFor(path, user string, while counter.Micros, a wire.Answer) int {
	p.t.Helper()
	id := p.ask(path, user)
	p.f.Flush()
	if len(p.calls) == 0 {
		p.t.Fatalf("%s %s: the bridge is not asked", path, user)
	}
	c, _, items := p.check()
	if items[0].Ask.Known != 0 {
		p.t.Errorf("%s %s: known is %x", path, user, items[0].Ask.Known)
	}
	p.now += while
	c.answer(replyWith(a))
	p.f.endTurns()
	return p.status(id)
}

var blocked = &corepolicy.ClientRecord{Blocked: true}

// TestRecordsAreTrustedForHalfASecond: the filter first asks the bridge about a client, even if the
// client has no limit. The filter then decides by the client's records for half a second, and asks
// again.
func TestRecordsAreTrustedForHalfASecond(t *testing.T) {
	p := newPatron(t)
	if got := p.wantAsked("/free", "ann", addRecords(wire.Answer{}, counter.Minute, nil, nil)); got != 200 {
		t.Errorf("status %d", got)
	}
	p.now += recordTrusted - 1
	if got := p.wantDecided("/free", "ann"); got != 200 {
		t.Errorf("within half a second: %d", got)
	}
	p.now++
	if got := p.wantAsked("/free", "ann", addRecords(wire.Answer{}, counter.Minute, nil, blocked)); got != 403 {
		t.Errorf("a blocked client: %d", got)
	}
	if got := p.wantDecided("/free", "ann"); got != 403 {
		t.Errorf("by the record: %d", got)
	}
	p.wantAsked("/free", "bob", addRecords(wire.Answer{}, counter.Minute, nil, &corepolicy.ClientRecord{Exempt: true}))
	if got := p.wantDecided("/api/x", "bob"); got != 200 {
		t.Errorf("an exempt client: %d", got)
	}
	p.wantAsked("/free", "cid", addRecords(wire.Answer{}, counter.Minute, blocked, nil))
	if got := p.wantDecided("/free", "cid"); got != 403 {
		t.Errorf("a client of a blocked network: %d", got)
	}
}

// TestADenialOfAnOldRecord: a denial is remembered for no longer than the client's record. After
// that, the filter asks the bridge, and decides by the new record.
func TestADenialOfAnOldRecord(t *testing.T) {
	p := newPatron(t)
	if got := p.wantAsked("/api/x", "ann", addRecords(denialOver(), counter.Minute, nil, nil)); got != 429 {
		t.Errorf("status %d", got)
	}
	if got := p.wantDecided("/api/x", "ann"); got != 429 || p.counts[CounterRemembered] != 1 {
		t.Errorf("a remembered denial: %d", got)
	}
	p.now += recordTrusted
	if got := p.wantAsked("/api/x", "ann", addRecords(wire.Answer{}, counter.Minute, nil, blocked)); got != 403 {
		t.Errorf("a blocked client: %d", got)
	}
}

// TestALateRecord: the half second of a record begins with the question. A record that arrives late
// is valid only for the rest of that time, or not at all.
func TestALateRecord(t *testing.T) {
	p := newPatron(t)
	p.wantAskedFor("/free", "ann", recordTrusted-1, addRecords(wire.Answer{}, counter.Minute, nil, nil))
	p.wantDecided("/free", "ann")
	p.now++
	p.wantAskedFor("/free", "ann", recordTrusted, addRecords(wire.Answer{}, counter.Minute, nil, nil))
	p.wantAsked("/free", "ann", addRecords(wire.Answer{}, counter.Minute, nil, nil))
}

// TestWhatTheBridgeDoesNotKnow: if Redis does not answer the bridge, the request is decided without
// a record, and nothing about the client is remembered. The filter keeps a record that it had
// before.
func TestWhatTheBridgeDoesNotKnow(t *testing.T) {
	p := newPatron(t)
	p.wantAsked("/free", "bob", addRecords(wire.Answer{}, counter.Minute, nil, blocked))
	p.now += recordTrusted
	for range 3 {
		if got := p.wantAsked("/free", "bob", addRecords(wire.Answer{}, 0, nil, nil)); got != 200 {
			t.Errorf("status %d", got)
		}
	}
	p.refuses = errNo
	if got := p.wantDecided("/free", "bob"); got != 403 {
		t.Errorf("without the bridge: %d", got)
	}
}

// TestOldRecordsWithoutTheBridge: without the bridge, old records decide, and a new client has
// none.
func TestOldRecordsWithoutTheBridge(t *testing.T) {
	p := newPatron(t)
	p.wantAsked("/free", "bob", addRecords(wire.Answer{}, counter.Minute, nil, blocked))
	p.now += 10 * counter.Minute
	p.refuses = errNo
	if got := p.wantDecided("/free", "bob"); got != 403 {
		t.Errorf("a blocked client: %d", got)
	}
	if got := p.wantDecided("/free", "new"); got != 200 {
		t.Errorf("a new client: %d", got)
	}
}

// TestAnOverloadAdmitsNoUnknownClient: if the bridge has no time, a client whose record is unknown
// or old is denied, even if it has no limit. A client with a fresh record is served.
func TestAnOverloadAdmitsNoUnknownClient(t *testing.T) {
	p := newPatron(t)
	p.wantAsked("/free", "ann", addRecords(wire.Answer{}, counter.Minute, nil, nil))
	busy := func(user string) int {
		t.Helper()
		id := p.ask("/free", user)
		for range againMax + 1 {
			p.f.Flush()
			c, _, _ := p.check()
			c.answer(replyWith(wire.Answer{Status: wire.StatusBusy}))
		}
		p.f.endTurns()
		return p.status(id)
	}
	if got := busy("new"); got != 503 {
		t.Errorf("a new client: %d", got)
	}
	if got := p.wantDecided("/free", "ann"); got != 200 {
		t.Errorf("a known client: %d", got)
	}
	p.now += recordTrusted
	if got := busy("ann"); got != 503 {
		t.Errorf("a client with an old record: %d", got)
	}
}

// TestRecordsOfAnotherPlan: an answer with too few, too many or unreadable records does not count
// as an answer.
func TestRecordsOfAnotherPlan(t *testing.T) {
	for name, records := range map[string]string{"none": "", "one": "\x00", "three": "\x00\x00\x00", "cut": "\x00\x7f", "malformed": "\x00\x02\x00"} {
		p := newPatron(t)
		a := wire.Answer{Verdict: &wire.Verdict{TTLMicros: 1e6, Records: records}}
		if got := p.wantAsked("/api/x", "ann", a); got != 200 || p.counts[CounterUnanswered] != 1 || p.counts[CounterDegraded] != 1 {
			t.Errorf("%s: status %d, counts %v", name, got, p.count())
		}
	}
}

// TestRecordsAreBounded: made-up clients and records of any length take bounded memory. A real
// client that returns is still remembered.
func TestRecordsAreBounded(t *testing.T) {
	p := newPatron(t)
	long := &corepolicy.ClientRecord{Tier: fmt.Sprintf("%0255d", 1)}
	for i := range 2 * recordTextMax / 255 {
		p.now += 1000
		p.wantAsked("/free", fmt.Sprint(i), addRecords(wire.Answer{}, counter.Minute, nil, long))
		if d := p.f.policy.directory; len(d.known) != recordsKept || d.text > recordTextMax {
			t.Fatalf("%d records, %d bytes", len(d.known), d.text)
		}
	}
	p = newPatron(t)
	for i := range recordsKept * 3 / 2 {
		if p.now += 10; i%20 == 0 {
			p.now += recordTrusted
			want := addRecords(wire.Answer{}, counter.Minute, nil, nil)
			p.wantAsked("/free", "ann", want)
		}
		p.wantAsked("/free", fmt.Sprint(i), addRecords(wire.Answer{}, counter.Minute, nil, nil))
		p.wantDecided("/free", "ann")
	}
}

// TestRecordsDoNotAllocate: a request that is decided by a remembered record costs no more
// allocations than one without a directory.
func TestRecordsDoNotAllocate(t *testing.T) {
	allocations := func(policy corepolicy.Policy) float64 {
		e := newEnvoy(t)
		p := &patronFilter{fakeEnvoy: e, f: withPolicy(t, e, policy), field: "x-user"}
		request := get("/free", "x-user", "a-user-with-a-name-of-more-than-32-bytes")
		if policy.Directory {
			p.wantAsked("/free", "a-user-with-a-name-of-more-than-32-bytes", addRecords(wire.Answer{}, counter.Minute, nil, &corepolicy.ClientRecord{Tier: "gold"}))
		}
		return testing.AllocsPerRun(100, func() {
			p.now += counter.Millisecond
			s := p.f.NewStream(1 << 20)
			if s.RequestHeaders(request) != Continue {
				t.Fatal("not decided")
			}
			s.Done()
		})
	}
	without := directedPolicy(t)
	without.Directory = false
	if one, other := allocations(directedPolicy(t)), allocations(without); one != other {
		t.Errorf("%v allocations, and %v without a directory", one, other)
	}
}

// BenchmarkRecords measures the cost that the lookups of an address and a user add to a request
// without a limit.
func BenchmarkRecords(b *testing.B) {
	for name, with := range map[string]bool{"without": false, "with": true} {
		b.Run(name, func(b *testing.B) {
			host := &quickHost{now: counter.Second}
			p := corepolicy.Policy{Name: "shop", Directory: with, Identify: []corepolicy.Identify{{Kind: corepolicy.IdentifyHeader, Name: "X-User", Unverified: true}}}
			f, err := New(host, []byte("policy: "+encoding.StdEncoding.EncodeToString(compact.AppendPolicy(nil, &p, "v1"))))
			if err != nil {
				b.Fatal(err)
			}
			if d := f.policy.directory; d != nil {
				a := netip.MustParseAddr("192.0.2.7").As16()
				for _, client := range []uint64{d.key.sum(a[:]), d.key.sum([]byte("header.x-user"))*3 ^ d.key.sum([]byte("ann"))} {
					d.known[client%recordsKept] = knownRecord{client: client, asked: counter.Second}
				}
			}
			request := get("/free", "x-user", "ann")
			for i := 0; b.Loop(); i++ {
				host.now = counter.Second + counter.Micros(i%5)*counter.Millisecond // so that the requests are not a burst, and the records are never old
				if f.NewStream(1).RequestHeaders(request) != Continue {
					b.Fatal("not decided")
				}
			}
		})
	}
}

// newHolder returns a filter whose clients have API keys, under a policy with a directory. Clients
// of the tier premium have no limit.
func newHolder(t *testing.T) *patronFilter {
	t.Helper()
	p := openToPremium(t, corepolicy.Identify{Kind: corepolicy.IdentifyAPIKey, DenyInvalid: true})
	p.Directory = true
	e := newEnvoy(t)
	return &patronFilter{fakeEnvoy: e, f: withPolicy(t, e, p), field: "x-api-key"}
}

// addKeyed returns an answer with the verdict on a key, and with the records of the address and, if
// the key is valid, of the client.
func addKeyed(ttl counter.Micros, way wire.Way) wire.Answer {
	records := make([]*corepolicy.ClientRecord, 1, 2)
	if way.State == corepolicy.CredentialValid {
		records = append(records, nil)
	}
	a := addRecords(wire.Answer{}, ttl, records...)
	a.Verdict.Ways = []wire.Way{way}
	return a
}

var (
	validKey   = foundVerdict(0, "premium")
	revokedKey = wire.Way{State: corepolicy.CredentialRevoked}
	unknownKey = wire.Way{State: corepolicy.CredentialUnknown}
)

// TestVerdictsAreTrustedForHalfASecond: under a policy with a directory, which may have the key,
// the filter decides by a verdict for half a second, even if it remembers a denial. Other requests
// that renew the records of the client do not extend that time. After that, the filter asks the
// bridge.
func TestVerdictsAreTrustedForHalfASecond(t *testing.T) {
	p := newHolder(t)
	p.wantAsked("/api/x", "one", addKeyed(counter.Minute, validKey))
	p.now += recordTrusted - 1
	if got := p.wantDecided("/api/x", "one"); got != 200 {
		t.Errorf("within half a second: %d", got)
	}
	p.wantAsked("/api/x", "two", addKeyed(counter.Minute, validKey)) // the records of the same client and address
	p.now++
	if got := p.wantAsked("/api/x", "one", addKeyed(counter.Minute, revokedKey)); got != 401 {
		t.Errorf("a revoked key: %d", got)
	}
	if one, two := p.wantDecided("/api/x", "one"), p.wantDecided("/api/x", "two"); one != 401 || two != 200 {
		t.Errorf("by the verdicts: %d and %d", one, two)
	}
	p.wantAsked("/api/x", "new", addKeyed(counter.Minute, unknownKey))
	p.now += recordTrusted
	if got := p.wantAsked("/api/x", "new", addKeyed(counter.Minute, validKey)); got != 200 {
		t.Errorf("a key that was made meanwhile: %d", got)
	}
	if got := p.wantAskedFor("/api/x", "late", recordTrusted, addKeyed(counter.Minute, validKey)); got != 200 {
		t.Errorf("a verdict that came late: %d", got)
	}
	p.wantAsked("/api/x", "late", addKeyed(counter.Minute, revokedKey))
}

// TestOldVerdictsWithoutTheBridge: without the bridge, an old verdict decides until the end that
// the bridge has set. A verdict is not remembered if the bridge has not read the key.
func TestOldVerdictsWithoutTheBridge(t *testing.T) {
	p := newHolder(t)
	p.wantAsked("/api/x", "one", addKeyed(10*counter.Second, revokedKey))
	p.wantAsked("/api/x", "two", addKeyed(0, wire.Way{State: corepolicy.CredentialInvalid}))
	p.wantAsked("/api/x", "two", addKeyed(10*counter.Second, validKey))
	p.now += 9 * counter.Second
	p.refuses = errNo
	if one, two := p.wantDecided("/api/x", "one"), p.wantDecided("/api/x", "two"); one != 401 || two != 200 {
		t.Errorf("without the bridge: %d and %d", one, two)
	}
}

// TestAnOverloadAdmitsNoUnknownKey: if the bridge has no time, a request with an unknown key is
// denied, even if the records of its address are known.
func TestAnOverloadAdmitsNoUnknownKey(t *testing.T) {
	p := newHolder(t)
	p.wantAsked("/api/x", "one", addKeyed(counter.Minute, validKey))
	id := p.ask("/api/x", "new")
	for range againMax + 1 {
		p.f.Flush()
		c, _, _ := p.check()
		c.answer(replyWith(wire.Answer{Status: wire.StatusBusy}))
	}
	p.f.endTurns()
	if got := p.status(id); got != 503 {
		t.Errorf("a new key: %d", got)
	}
}
