// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// fakeEnvoy represents a worker of Envoy. The test advances its clock and answers the calls.
type fakeEnvoy struct {
	t          *testing.T
	now        counter.Micros
	wrong      counter.Micros // how far the monotonic clock is behind
	calls      []madeCall
	wakes      int
	every      uint32         // milliseconds between ticks
	ticks      counter.Micros // time of the next tick
	resumed    []uint32
	responses  map[uint32]Response
	properties map[string]string
	counts     [counterCount]int
	held       int64 // the gauge of held units
	warnings   []string
	refuses    error  // error of every call
	sleeps     error  // error of every wake
	wakesAt    func() // called at every wake; nil if the test calls Flush itself
	panics     string // the method that panics once
	shared     map[uint32]sharedValue
	shares     func(slot uint32) // called before each Share; nil means no call
}

// fakeEnvoy.trip panics if the test has requested a panic in the given method.
func (e *fakeEnvoy) trip(method string) {
	if e.panics == method {
		e.panics = ""
		panic("the host's " + method)
	}
}

// madeCall is a call that the filter has made.
type madeCall struct {
	Call
	answer func(Reply)
}

func newEnvoy(t *testing.T) *fakeEnvoy {
	return &fakeEnvoy{t: t, now: 1_700_000_000 * counter.Second, responses: map[uint32]Response{},
		properties: map[string]string{"source.address": "192.0.2.7:4711"}}
}

func (e *fakeEnvoy) Call(c Call, answered func(Reply)) error {
	e.trip("Call")
	if e.refuses != nil {
		return e.refuses
	}
	c.Body, c.Header = slices.Clone(c.Body), slices.Clone(c.Header)
	once := false
	e.calls = append(e.calls, madeCall{c, func(r Reply) {
		if once {
			e.t.Error("a call is answered twice")
		}
		once = true
		answered(r)
	}})
	return nil
}

func (e *fakeEnvoy) Wake() error {
	e.trip("Wake")
	if e.sleeps == nil {
		e.wakes++
	}
	if e.wakesAt != nil {
		e.wakesAt()
	}
	return e.sleeps
}

func (e *fakeEnvoy) TickEvery(millis uint32) error {
	e.trip("TickEvery")
	e.every, e.ticks = millis, e.now+counter.Micros(millis)*counter.Millisecond
	return nil
}

func (e *fakeEnvoy) Resume(stream uint32) {
	e.trip("Resume")
	e.resumed = append(e.resumed, stream)
}

func (e *fakeEnvoy) Respond(stream uint32, r Response) {
	e.trip("Respond")
	e.responses[stream] = r
}

func (e *fakeEnvoy) Now() counter.Micros {
	e.trip("Now")
	return e.now
}

func (e *fakeEnvoy) Elapsed() counter.Micros {
	e.trip("Elapsed")
	return e.now - e.wrong
}

func (e *fakeEnvoy) Count(c Counter) {
	e.trip("Count")
	e.counts[c]++
}

func (e *fakeEnvoy) Held(change int64) {
	e.trip("Held")
	e.held += change
}

func (e *fakeEnvoy) Warn(line string) {
	e.trip("Warn")
	e.warnings = append(e.warnings, line)
}

func (e *fakeEnvoy) Property(path ...string) (string, bool) {
	e.trip("Property")
	if strings.Join(path, "") == "" {
		e.t.Errorf("asked for the attribute %q, for which the SDK panics", path)
	}
	value, ok := e.properties[strings.Join(path, ".")]
	return value, ok
}

// sharedValue is a value in Envoy's shared data, common to all workers.
type sharedValue struct {
	value []byte
	cas   uint32
}

func (e *fakeEnvoy) Shared(slot uint32) ([]byte, uint32) {
	e.trip("Shared")
	v := e.shared[slot]
	return slices.Clone(v.value), v.cas
}

func (e *fakeEnvoy) Share(slot uint32, value []byte, cas uint32) bool {
	e.trip("Share")
	if e.shares != nil {
		e.shares(slot)
	}
	v, ok := e.shared[slot]
	if ok && cas != v.cas {
		return false
	}
	if e.shared == nil {
		e.shared = map[uint32]sharedValue{}
	}
	e.shared[slot] = sharedValue{slices.Clone(value), v.cas + 1}
	return true
}

// timeOut advances the clock, tick by tick, until a silent bridge counts as down.
func (e *fakeEnvoy) timeOut(f *Filter) {
	for range f.silentFor()/tickFast + 1 {
		e.now += tickFast
		f.Tick()
	}
}

// fakeEnvoy.count returns the statistics that are not zero.
func (e *fakeEnvoy) count() map[string]int {
	all := map[string]int{}
	for c, n := range e.counts {
		if n > 0 {
			all[CounterNames[c]] = n
		}
	}
	return all
}

// fakeEnvoy.check returns the oldest unread check call and its items.
func (e *fakeEnvoy) check() (madeCall, *wire.CallReader, []wire.Item) {
	e.t.Helper()
	if len(e.calls) == 0 {
		e.t.Fatal("there is no call")
	}
	c := e.calls[0]
	e.calls = e.calls[1:]
	if c.Path != checkPath {
		e.t.Fatalf("a call to %s", c.Path)
	}
	reader, err := wire.ReadCall(c.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	var items []wire.Item
	for {
		var item wire.Item
		ok, err := reader.Next(&item)
		if err != nil {
			e.t.Fatal(err)
		}
		if !ok {
			return c, reader, items
		}
		items = append(items, item)
	}
}

// replyWith returns a reply of the bridge with the given answers.
func replyWith(answers ...wire.Answer) Reply {
	body := wire.AppendReply(nil)
	for i := range answers {
		body = wire.AppendAnswer(body, &answers[i])
	}
	return Reply{Status: 200, Body: body}
}

// admittedWith returns an admission with n units remaining.
func admittedWith(n int64) wire.Answer {
	return wire.Answer{Results: []counter.Result{{At: counter.Second, Granted: 1, Remaining: n, Reset: counter.Minute, Next: counter.Second}}}
}

// denialOver returns a denial.
func denialOver() wire.Answer {
	return wire.Answer{Results: []counter.Result{{At: counter.Second, Denied: true, Wait: 30 * counter.Second, Reset: counter.Minute}}}
}

// withPolicy returns a filter with a policy in force.
func withPolicy(t *testing.T, e *fakeEnvoy, p corepolicy.Policy, settings ...string) *Filter {
	t.Helper()
	f, err := New(e, []byte(strings.Join(settings, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	f.calls.sources.key = 0x9e3779b1 // with this key, the addresses of the tests have different counts
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	e.publish(f, p, "v1")
	return f
}

// endTurns ends turns until all pending resumes and replies are executed.
func (f *Filter) endTurns() {
	for len(f.out.waiting) > 0 {
		f.Flush()
	}
}

// fakeEnvoy.publish answers the pending poll with a policy.
func (e *fakeEnvoy) publish(f *Filter, p corepolicy.Policy, version string) {
	e.t.Helper()
	i := slices.IndexFunc(e.calls, func(c madeCall) bool { return c.Path == policyPath })
	if i < 0 {
		e.t.Fatal("nobody has asked for a policy")
	}
	c := e.calls[i]
	e.calls = slices.Delete(e.calls, i, i+1)
	c.answer(Reply{Status: 200, ETag: `"` + version + `"`, Body: compact.AppendPolicy(nil, &p, version)})
	if f.policy == nil || f.policy.version != version {
		e.t.Fatalf("the policy is not in force: %q", e.warnings)
	}
}

func shopPolicy(t *testing.T, limit string) corepolicy.Policy {
	t.Helper()
	l, err := counter.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	return corepolicy.Policy{Name: "shop", Rules: []corepolicy.Rule{{Name: "api", Match: corepolicy.Match{Path: []string{"/api/*"}},
		Limits: []counter.Limit{l}}}}
}

func get(path string, fields ...string) [][2]string {
	headers := [][2]string{{":method", "GET"}, {":path", path}, {":authority", "example.com"}}
	for i := 0; i < len(fields); i += 2 {
		headers = append(headers, [2]string{fields[i], fields[i+1]})
	}
	return headers
}

func equalCounts(t *testing.T, e *fakeEnvoy, want map[string]int) {
	t.Helper()
	if got := e.count(); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

var errNo = errors.New("no")
