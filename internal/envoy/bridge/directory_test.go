// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/envoy-wasm/filter"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/seed"
)

// clientele is a policy for whose clients a directory has records.
const clientele = `
name: shop
directory: true
lease: auto
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - { name: low, match: { path: /low }, limit: 1/1s fixed_window, tiers: { gold: 5/1s fixed_window } }
  - { name: hot, match: { path: /hot }, limit: 1000000/1h fixed_window }
`

// openDirected opens a bridge whose directory reads from the source.
func openDirected(t testing.TB, policy string, source directory.Source, timeout time.Duration) *testBridge {
	t.Helper()
	return open(t, policy, func(o *Options) {
		o.OpenDirectory = func() (*directory.Directory, error) {
			return directory.Open(directory.Options{Source: source, Timeout: timeout})
		}
	})
}

// followedSource is a source in memory that reports when the directory begins to follow its
// changes. The directory then reads every known record again.
type followedSource struct {
	*directory.Memory
	following chan struct{}
}

func (f *followedSource) Follow(ctx context.Context, changed func(policy.ClientName), missed func()) {
	f.Memory.Follow(ctx, changed, func() { missed(); close(f.following) })
}

// sourceIn returns a source in a Redis.
func sourceIn(t *testing.T, server *redistest.Server) *redisdir.Source {
	t.Helper()
	return redisdir.New(openRedis(t, server))
}

func edit(t testing.TB, source directory.Source, e directory.Edit) {
	t.Helper()
	e.Actor, e.Reason = "tester", "a test"
	editor := directory.Editor{Source: source}
	if _, err := editor.Apply(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// testBridge.questionBy returns a question about a request that the user sends to the path.
func (h *testBridge) questionBy(user, path string) wire.Item {
	item := h.question(path, "192.0.2.1")
	item.Ask.Headers[0] = wire.Value{Text: user, Given: true}
	return item
}

// recordsOf decodes the client records that a verdict contains.
func recordsOf(t *testing.T, v *wire.Verdict) (records []*policy.ClientRecord) {
	t.Helper()
	for rest := v.Records; rest != ""; {
		text, others, ok := wire.CutRecord(rest)
		record, err := wire.ReadRecord(text)
		if !ok || err != nil {
			t.Fatalf("%q: %v", v.Records, err)
		}
		records, rest = append(records, record), others
	}
	return records
}

// TestQuestionsAreDecidedWithRecords: the bridge decides by the records of the clients, and sends
// them unless the filter knows them.
func TestQuestionsAreDecidedWithRecords(t *testing.T) {
	memory := &followedSource{new(directory.Memory), make(chan struct{})}
	edit(t, memory, directory.Edit{Client: "header.x-user:gold", Action: directory.ActionSetTier, Tier: "gold"})
	edit(t, memory, directory.Edit{Client: "header.x-user:own", Action: directory.ActionSetLimits, Rule: "low", Limits: []string{"7/1s fixed_window"}})
	edit(t, memory, directory.Edit{Client: "header.x-user:bad", Action: directory.ActionBlock})
	edit(t, memory, directory.Edit{Client: "header.x-user:free", Action: directory.ActionExempt})
	h := openDirected(t, clientele, memory, redistestTimeout)
	<-memory.following
	users := []string{"gold", "own", "bad", "free", "none"}
	var items []wire.Item
	for _, user := range users {
		items = append(items, h.questionBy(user, "/low"))
	}
	answers := h.ask(items...)
	for i, want := range []struct {
		left   int64 // -1 means that there is no check
		record func(*policy.ClientRecord) bool
	}{
		{4, func(r *policy.ClientRecord) bool { return r != nil && r.Tier == "gold" }},
		{6, func(r *policy.ClientRecord) bool { return r != nil && r.Overrides != nil }},
		{-1, func(r *policy.ClientRecord) bool { return r != nil && r.Blocked }},
		{-1, func(r *policy.ClientRecord) bool { return r != nil && r.Exempt }},
		{0, func(r *policy.ClientRecord) bool { return r == nil }},
	} {
		a := &answers[i]
		left := int64(-1)
		if len(a.Results) > 0 {
			left = a.Results[0].Remaining
		}
		if a.Status != wire.StatusOK || a.Verdict == nil || a.Verdict.TTLMicros <= 0 || left != want.left {
			t.Errorf("%s: %+v", users[i], a)
			continue
		}
		records := recordsOf(t, a.Verdict)
		if len(records) != 2 || records[0] != nil || !want.record(records[1]) { // the records of the network and the user
			t.Errorf("%s: records %+v", users[i], records)
		}
	}
	if reads := h.counted(`penstock_directory_reads_total{result="answered"}`); reads != 1 {
		t.Errorf("%d reads for a call", reads)
	}
	known := h.questionBy("gold", "/low")
	for _, text := range []string{"", "\x00" + string(wire.AppendRecord(nil, &policy.ClientRecord{Tier: "gold"})[2:])} {
		known.Ask.Known += wire.RecordFingerprint(text)
	}
	if a := h.ask(known)[0]; a.Verdict != nil {
		t.Errorf("what the filter knows is sent again: %+v", a.Verdict)
	}
	if body := h.post([]byte(`{"path":"/low","ip":"192.0.2.1","headers":{"X-User":"bad"}}`), "application/json").Body.String(); !strings.Contains(body, `"blocked"`) {
		t.Errorf("in JSON: %s", body)
	}
}

// TestWithoutADirectoryNothingIsSent: a question about a policy without a directory is answered as
// by earlier releases.
func TestWithoutADirectoryNothingIsSent(t *testing.T) {
	h := openDirected(t, shop, new(directory.Memory), redistestTimeout)
	if a := h.ask(h.question("/api/x", "192.0.2.1"))[0]; a.Verdict != nil || a.Status != wire.StatusOK {
		t.Errorf("%+v", a)
	}
	if h.b.directory.Load() != nil {
		t.Error("the directory is open")
	}
	h.write(clientele)
	if err := h.b.Reload(); err != nil {
		t.Fatal(err)
	}
	if a := h.ask(h.questionBy("ann", "/low"))[0]; a.Verdict == nil {
		t.Errorf("after the edit: %+v", a)
	}
}

// TestAPolicyThatNeedsADirectory: a bridge that counts in memory rejects a policy that needs a
// directory, and names the remedy.
func TestAPolicyThatNeedsADirectory(t *testing.T) {
	h := open(t, shop, nil)
	h.write(clientele)
	if err := h.b.Reload(); err == nil || !strings.Contains(err.Error(), "policy.yaml:3: directory: is true") || !strings.Contains(err.Error(), "--redis") {
		t.Error(err)
	}
}

// TestRedisOfTheDirectoryAway: if Redis does not answer, the records that the bridge has stay in
// force. A new client is decided without a record, and the filter must not remember that it has
// none.
func TestRedisOfTheDirectoryAway(t *testing.T) {
	server := redistest.Start(t)
	source := sourceIn(t, server)
	edit(t, source, directory.Edit{Client: "header.x-user:bad", Action: directory.ActionBlock})
	h := openDirected(t, clientele, source, redistestTimeout)
	eventually.Until(t, redistestTimeout, "the client is read", func() bool { return h.ask(h.questionBy("bad", "/low"))[0].Verdict != nil })
	server.Kill()
	answers := h.ask(h.questionBy("bad", "/low"), h.questionBy("new", "/low"))
	if v := answers[0].Verdict; v == nil || len(answers[0].Results) != 0 || v.TTLMicros <= 0 || !recordsOf(t, v)[1].Blocked {
		t.Errorf("the blocked client: %+v", answers[0])
	}
	if a := &answers[1]; a.Status != wire.StatusOK || len(a.Results) != 1 || a.Verdict == nil || a.Verdict.TTLMicros != 0 {
		t.Errorf("the new client: %+v", a)
	}
	if n := h.counted("penstock_directory_undirected_total"); n != 1 {
		t.Errorf("%d undirected", n)
	}
}

// redistestTimeout is long enough for Redis on a busy machine.
const redistestTimeout = 10 * time.Second

// TestTooManyNewClientsOfOneAddress: new clients of one address beyond the bound are answered with
// StatusBusy, while a client of another address is read. A blocked client is never admitted.
func TestTooManyNewClientsOfOneAddress(t *testing.T) {
	server := redistest.Start(t)
	source := sourceIn(t, server)
	edit(t, source, directory.Edit{Client: "header.x-user:bad", Action: directory.ActionBlock})
	edit(t, source, directory.Edit{Client: "header.x-user:worse", Action: directory.ActionBlock})
	h := openDirected(t, clientele, source, redistestTimeout)
	h.ask(h.questionBy("warm", "/free"))
	d := h.b.directory.Load()
	server.Pause()
	before := d.Figures().Reads.Load()
	done := make(chan struct{})
	go func() { // this keeps the first read under way
		defer close(done)
		d.Fetch(t.Context(), 0, []policy.ClientName{{Kind: "user", ID: "first"}})
	}()
	eventually.Until(t, redistestTimeout, "a read is under way", func() bool {
		return d.Figures().Reads.Load() > before || d.Waits("user", "first") // the client waits for the next read
	})
	var flood []policy.ClientName
	source1 := counterSource(h, "192.0.2.1")
	for i := range 1024 {
		flood = append(flood, policy.ClientName{Kind: "user", ID: fmt.Sprint(i)})
	}
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		d.Fetch(t.Context(), source1, flood)
	}()
	eventually.Until(t, redistestTimeout, "the flood waits", func() bool { return d.Waiting() >= len(flood) })
	over, other := h.questionBy("worse", "/free"), h.questionBy("bad", "/free")
	other.Ask.Peer = other.Ask.Peer.Next()
	answered := make(chan []wire.Answer)
	go func() { answered <- h.ask(over, other) }()
	eventually.Until(t, redistestTimeout, "the client of the other address waits", func() bool { return d.Waits("header.x-user", "bad") })
	server.Resume()
	answers := <-answered
	if answers[0].Status != wire.StatusBusy {
		t.Errorf("beyond the bound: %+v", answers[0])
	}
	for answers[1].Status == wire.StatusBusy { // on a busy machine, the read takes longer than a request waits
		answers = h.ask(over, other)
	}
	if a := &answers[1]; a.Verdict == nil || !recordsOf(t, a.Verdict)[1].Blocked {
		t.Errorf("of another address: %+v", a)
	}
	<-done
	<-flooded
}

// counterSource returns the number that identifies an address as the source of requests.
func counterSource(h *testBridge, addr string) uint32 {
	item := h.question("/low", addr)
	q := new(question)
	q.item = item
	q.reset(h.b, h.b.policy.Current(), micros(time.Now()))
	left := verifyTime
	q.begin(&left, false)
	return q.plan.Source()
}

// userRequest is a request that a user sends to a path.
type userRequest struct{ user, path string }

// checkedWorker is a worker whose answers are checked.
type checkedWorker struct {
	*worker
	sought map[uint32]userRequest
	answer func(userRequest, int)
}

func (j *checkedWorker) Resume(id uint32)                     { j.answer(j.sought[id], 200) }
func (j *checkedWorker) Respond(id uint32, r filter.Response) { j.answer(j.sought[id], int(r.Status)) }

func (w *world) newJudge(answer func(userRequest, int)) *checkedWorker {
	j := &checkedWorker{worker: &worker{w: w, started: time.Now()}, sought: map[uint32]userRequest{}, answer: answer}
	var err error
	if j.f, err = filter.New(j, []byte("on_error: deny")); err == nil {
		err = j.f.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

// checkedWorker.ask sends a request of a user, and checks the answer.
func (j *checkedWorker) ask(s userRequest) {
	j.next++
	j.sought[j.next] = s
	headers := [][2]string{{":method", "GET"}, {":path", s.path}, {":authority", "shop.example"}, {"x-user", s.user}}
	if j.f.NewStream(j.next).RequestHeaders(headers) == filter.Continue {
		j.answer(s, 200)
	}
}

// directedClient is the record that operators have set for a client, and the instant of the change.
type directedClient struct {
	blocked, exempt bool
	since           time.Time
}

// directedClient.change blocks or exempts the client, or ends the block or exemption.
func (c *directedClient) change(what int) directory.Action {
	c.since = time.Now()
	switch {
	case what == 0 && c.blocked:
		c.blocked = false
		return directory.ActionUnblock
	case what == 0:
		c.blocked = true
		return directory.ActionBlock
	case c.exempt:
		c.exempt = false
		return directory.ActionUnexempt
	default:
		c.exempt = true
		return directory.ActionExempt
	}
}

// directedClient.allows reports whether an answer to the client is right. Within a second
// after a change, any answer is right.
func (c *directedClient) allows(path string, status int) bool {
	switch {
	case time.Since(c.since) < time.Second:
		return true
	case c.blocked:
		return status == 403
	default:
		return status == 200 || status == 429 && path == "/low" && !c.exempt
	}
}

// openClientele opens a bridge with the policy clientele in simulated time.
func openClientele(t *testing.T, source directory.Source) *testBridge {
	t.Helper()
	d, err := policyfile.Decode("shop", policyfile.YAML, []byte(clientele))
	if err != nil {
		t.Fatal(err)
	}
	return open(t, clientele, func(o *Options) {
		o.PolicyFile, o.Policy = "", d
		o.OpenDirectory = func() (*directory.Directory, error) { return directory.Open(directory.Options{Source: source}) }
	})
}

// TestRecordsHoldInFilters: operators block, exempt and release clients while workers of several
// Envoys admit requests from leased units, deny requests by remembered denials, or decide requests
// without a limit. One second after each change, every worker decides by the changed record.
func TestRecordsHoldInFilters(t *testing.T) {
	seed := seed.First(t)
	synctest.Test(t, func(t *testing.T) {
		memory := new(directory.Memory)
		w := &world{testBridge: openClientele(t, memory), random: rand.New(rand.NewPCG(seed, 1))}
		users, paths := []string{"ann", "bob", "cid"}, []string{"/low", "/hot", "/free"}
		clients, statuses := map[string]*directedClient{}, map[string]int{}
		for _, user := range users {
			clients[user] = new(directedClient)
		}
		check := func(s userRequest, status int) {
			statuses[fmt.Sprint(s.path, " ", status)]++
			if c := clients[s.user]; !c.allows(s.path, status) {
				t.Errorf("%v after a change to %+v: %s %s has status %d", time.Since(c.since), *c, s.user, s.path, status)
			}
		}
		for range 3 {
			j := w.newJudge(check)
			w.run(5 * time.Millisecond)
			var send func()
			send = func() {
				j.ask(userRequest{users[w.random.IntN(len(users))], paths[w.random.IntN(len(paths))]})
				w.in(time.Duration(w.random.ExpFloat64()*float64(time.Millisecond)), send)
			}
			w.in(0, send)
		}
		for range 12 {
			w.run(time.Duration(500+w.random.IntN(1500)) * time.Millisecond)
			user := users[w.random.IntN(len(users))]
			edit(t, memory, directory.Edit{Client: "header.x-user:" + user, Action: clients[user].change(w.random.IntN(2))})
		}
		w.run(1500 * time.Millisecond)
		t.Logf("%v; %d without a call", statuses, w.aside)
		if w.aside == 0 || statuses["/free 200"] == 0 || statuses["/hot 200"] == 0 {
			t.Errorf("too little was tried: %v, %d without a call", statuses, w.aside)
		}
	})
}

// TestDenialsByRecordsAreReported: if a filter has denied requests because of a client's record,
// the bridge reports those denials with the same reason.
func TestDenialsByRecordsAreReported(t *testing.T) {
	memory := new(directory.Memory)
	edit(t, memory, directory.Edit{Client: "header.x-user:bad", Action: directory.ActionBlock})
	edit(t, memory, directory.Edit{Client: "header.x-user:own", Action: directory.ActionSetLimits, Rule: "low", Limits: []string{"7/1s fixed_window"}})
	log, all := events.New(events.Options{}), new(eventCollector)
	detach := log.Attach(all)
	h := open(t, "events: {}"+clientele, func(o *Options) {
		o.Events = log
		o.OpenDirectory = func() (*directory.Directory, error) {
			return directory.Open(directory.Options{Source: memory, Timeout: redistestTimeout})
		}
	})
	h.ask(h.questionBy("bad", "/hot"), h.questionBy("own", "/hot"))
	report := func(user string, check int) wire.Item {
		item := h.questionBy(user, "/low")
		item.Kind, item.Units = wire.KindDenied, []wire.Units{{Check: check, Cost: 3}}
		return item
	}
	h.ask(report("bad", -1), report("own", 0))
	detach()
	counts := map[string]uint64{}
	for _, e := range *all {
		counts[fmt.Sprint(e.Client, " ", e.Rule, " ", e.Limit, " ", e.Decision, e.Reason)] += e.Count
	}
	if want := map[string]uint64{"header.x-user:bad directory  blocked": 4, "header.x-user:own low 7/1s fixed_window denied": 3}; !maps.Equal(counts, want) {
		t.Errorf("got  %v\nwant %v", counts, want)
	}
}
