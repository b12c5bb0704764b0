// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/fallback"
	"github.com/penstock/penstock/internal/identity"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/usage"
)

// noon is the corpus' instant: when the clock of core's run begins. It is a Saturday, the 81st day of a period of 90 days.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// coreFront is core with a store in memory, under a clock that moves where a request waits.
type coreFront struct {
	now   core.Micros
	store *Store
	asked core.Store // the store, and what stands in for it
	set   Setting
}

func newCoreFront(t testing.TB) *coreFront {
	f := &coreFront{now: core.Micros(noon.UnixMicro())}
	kept, err := memstore.New(memstore.Options{Now: func() core.Micros { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	f.store = &Store{Of: kept}
	local, err := memstore.New(memstore.Options{Now: func() core.Micros { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	f.asked = fallback.New(f.store, fallback.Options{Local: local})
	f.set = Setting{Now: noon, Attrs: map[string]string{"query": "query", "protocol": "protocol"}, KeySetURL: ServeKeySet(t)}
	return f
}

// begin makes a story's policy ready.
func (f *coreFront) begin(t testing.TB, s *Story) Asker {
	t.Helper()
	ruleset := f.compile(t, s.Write(t, t.TempDir(), f.set))
	f.now = core.Micros(noon.UnixMicro())
	f.store.SetAway(s.Away)
	return func(t testing.TB, e *Exchange) Answer { return f.ask(t, ruleset, &e.Request) }
}

func (f *coreFront) compile(t testing.TB, file string) *core.Ruleset {
	t.Helper()
	document, err := policy.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	ruleset, closeAll, err := f.open(document)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	return ruleset
}

// open compiles a policy with its verifiers.
func (f *coreFront) open(d *policy.Document) (*core.Ruleset, func(), error) {
	verifiers, closer, err := identity.OpenAll(d, identity.OpenOptions{Folder: d.File("."), Wait: 5 * time.Second,
		Now: func() time.Time { return time.UnixMicro(int64(f.now)) }})
	if err != nil {
		return nil, nil, err
	}
	ruleset, err := d.CompileWith(verifiers)
	if err != nil {
		_ = closer.Close()
		return nil, nil, err
	}
	return ruleset, func() { _ = closer.Close() }, nil
}

// ask decides a request, lets it wait if it has to, and settles what it cost.
func (f *coreFront) ask(t testing.TB, rs *core.Ruleset, r *Request) Answer {
	t.Helper()
	var plan core.Plan
	plan.Add(rs, &asked{request: r, now: f.now})
	d := f.decide(t, &plan)
	if d.Refused() && d.Delay > 0 {
		f.now += d.Delay
		if d = f.decide(t, &plan); !d.Refused() {
			plan.Delayed()
		}
	}
	a := Answer{Since: int64(f.now / core.Second), Header: http.Header{}, Exact: true, Counted: true}
	a.Until = a.Since
	fields := plan.Headers(&d)
	if d.Refused() {
		a.refuse(r, &plan, &d, &fields)
		return a
	}
	telling := fields.Telling()
	_, before := f.store.Settled()
	f.settle(t, &plan, &d, r, &telling)
	_, after := f.store.Settled()
	a.Settled = after - before
	a.pass(r, &d, &telling)
	return a
}

func (f *coreFront) decide(t testing.TB, plan *core.Plan) core.Decision {
	t.Helper()
	checks := plan.Checks()
	if len(checks) == 0 {
		return plan.Decide()
	}
	err := f.asked.Take(context.Background(), checks, plan.Results())
	switch {
	case err == nil:
		return plan.Decide()
	case !f.store.away:
		t.Fatal(err)
	}
	return plan.Degrade()
}

// settle asks for what the response makes of the charge.
func (f *coreFront) settle(t testing.TB, plan *core.Plan, d *core.Decision, r *Request, telling *core.Telling) {
	t.Helper()
	var s core.Settlement
	if d.Outcome == core.OutcomeDegradedAllowed || !plan.Settlement(&s) {
		return
	}
	answered, coding := &upstream{says: &r.Says, kind: "text/plain"}, ""
	for _, field := range r.Says.Header {
		switch http.CanonicalHeaderKey(field[0]) {
		case "Content-Type":
			answered.kind = field[1]
		case "Content-Encoding":
			coding = field[1]
		}
	}
	if paths := s.Paths(); len(paths) > 0 && r.Method != http.MethodHead {
		answered.tap = usage.New(paths, answered.kind, coding, nil)
		_, _ = answered.tap.Write([]byte(r.Says.Body))
	}
	begun := upstream{says: &Says{Status: r.Says.Status, Header: r.Says.Header}}
	if awaits := len(r.Says.Trailer) > 0 && s.Awaits(&begun); !awaits {
		if cost, known := s.CostNow(answered); known {
			telling.Correct(cost)
		}
	}
	checks, _ := s.Checks(answered)
	if len(checks) == 0 {
		return
	}
	if err := f.store.Take(context.Background(), checks, make([]core.Result, len(checks))); err != nil {
		t.Fatal(err)
	}
}

// refuse fills in what a refused client is sent.
func (a *Answer) refuse(r *Request, plan *core.Plan, d *core.Decision, fields *core.Fields) {
	a.Status = d.Status
	a.Header.Set("Content-Type", d.ContentType())
	a.tell(fields.Telling())
	if fields.Authenticate != "" {
		a.Header.Set("Www-Authenticate", fields.Authenticate)
	}
	if d.Response != nil {
		for _, field := range d.Response.Headers {
			a.Header.Set(field.Name, field.Value)
		}
	}
	if kind := grpcKind(r.header("Content-Type")); kind != "" {
		code, message := core.GRPCStatus(d)
		a.Status = http.StatusOK
		a.Header.Set("Content-Type", kind)
		a.Header.Set("Grpc-Status", strconv.Itoa(code))
		a.Header.Set("Grpc-Message", message)
		return
	}
	if r.Method != http.MethodHead {
		a.Body = string(plan.AppendProblem(nil, d))
	}
}

// grpcKind is the type of an answer to a gRPC request; "" for any other. How messages are encoded may stand behind it.
func grpcKind(asked string) string {
	kind, _, _ := strings.Cut(asked, "+")
	if slices.Contains([]string{"application/grpc", "application/grpc-web", "application/grpc-web-text"}, kind) {
		return kind
	}
	return ""
}

// pass fills in the upstream's response with what it is told besides.
func (a *Answer) pass(r *Request, d *core.Decision, telling *core.Telling) {
	a.Passed, a.Status = true, r.Says.Status
	if r.Method != http.MethodHead {
		a.Body = r.Says.Body
	}
	a.Header.Set("Content-Type", "text/plain")
	for _, field := range r.Says.Header {
		a.Header.Set(field[0], field[1])
	}
	telling.Merge(d.Remaining, false, func(f core.Told) []string { return a.Header.Values(core.ToldNames[f]) })
	a.tell(*telling)
}

func (a *Answer) tell(telling core.Telling) {
	for i, value := range telling {
		if value != "" {
			a.Header.Set(core.ToldNames[i], value)
		}
	}
}

// asked is a request of the corpus as core sees it.
type asked struct {
	request *Request
	now     core.Micros
}

func (a *asked) Path() string {
	path, _, _ := strings.Cut(a.request.Target, "?")
	return path
}

func (a *asked) Query() string {
	_, query, _ := strings.Cut(a.request.Target, "?")
	return query
}

func (a *asked) Method() string     { return a.request.Method }
func (a *asked) Host() string       { return a.request.Host }
func (a *asked) Peer() netip.Addr   { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }
func (a *asked) Remote() netip.Addr { return a.Peer() }
func (a *asked) Now() core.Micros   { return a.now }

func (a *asked) Header(name string) (string, bool) {
	var lines []string
	for _, field := range a.request.Header {
		if http.CanonicalHeaderKey(field[0]) == name {
			lines = append(lines, field[1])
		}
	}
	if len(lines) == 0 {
		return "", false
	}
	return core.JoinLines(name, lines), true
}

func (a *asked) Attr(name string) (string, bool) {
	switch name {
	case "query":
		return a.Query(), a.Query() != ""
	case "protocol":
		return "HTTP/1.1", true
	}
	return "", false
}

func (r *Request) header(name string) string {
	for _, field := range r.Header {
		if http.CanonicalHeaderKey(field[0]) == name {
			return field[1]
		}
	}
	return ""
}

// upstream is what the corpus' upstream says as a settlement sees it.
type upstream struct {
	says *Says
	kind string
	tap  *usage.Tap
}

func (u *upstream) Status() int { return u.says.Status }

func (u *upstream) Header(name string) (string, bool) {
	for _, fields := range [...][][2]string{u.says.Header, u.says.Trailer} {
		for _, field := range fields {
			if http.CanonicalHeaderKey(field[0]) == name {
				return field[1], true
			}
		}
	}
	return "", false
}

func (u *upstream) JSON(path string) (string, bool) {
	if u.tap == nil {
		return "", false
	}
	value, ok := u.tap.JSON(path)
	if u.tap.Unread() {
		return core.UnreadMark + value, true
	}
	return value, ok
}

// TestCore tells core the corpus.
func TestCore(t *testing.T) {
	f := newCoreFront(t)
	Run(t, "core", Load(t), f.begin)
}

// TestCoreIsLookedAtClosely tells core what is wrong.
func TestCoreIsLookedAtClosely(t *testing.T) {
	f := newCoreFront(t)
	RunWrong(t, "core", LoadWrong(t), f.begin)
}
