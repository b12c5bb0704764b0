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
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/request"
	"github.com/penstock/penstock/internal/usage"
)

// noon is the instant at which each story of the corpus begins if the test sets the clock, as it
// does with package core. The day is a Saturday, and the 81st day of a period of 90 days.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// coreFront is core with a store in memory. Its clock advances when a request waits.
type coreFront struct {
	now   counter.Micros
	store *Store
	asked counter.Store // the store, or its substitute
	set   Setting
}

func newCoreFront(t testing.TB) *coreFront {
	f := &coreFront{now: counter.Micros(noon.UnixMicro())}
	kept, err := memstore.New(memstore.Options{Now: func() counter.Micros { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	f.store = &Store{Of: kept}
	local, err := memstore.New(memstore.Options{Now: func() counter.Micros { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	f.asked = fallback.New(f.store, fallback.Options{Counts: fallback.NewCounts(local)})
	f.set = Setting{Now: noon, Attrs: map[string]string{"query": "query", "protocol": "protocol"}, KeySetURL: ServeKeySet(t)}
	return f
}

// coreFront.begin compiles a story's policy, and returns the function that decides the story's
// requests.
func (f *coreFront) begin(t testing.TB, s *Story) Asker {
	t.Helper()
	ruleset := f.compile(t, s.Write(t, t.TempDir(), f.set))
	f.now = counter.Micros(noon.UnixMicro())
	f.store.SetAway(s.Away)
	return func(t testing.TB, e *Exchange) Answer { return f.ask(t, ruleset, &e.Request) }
}

func (f *coreFront) compile(t testing.TB, file string) *core.Ruleset {
	t.Helper()
	document, err := policyfile.Load(file)
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

// coreFront.open compiles a policy with its verifiers.
func (f *coreFront) open(d *policyfile.Document) (*core.Ruleset, func(), error) {
	verifiers, closer, err := credential.OpenAll(d, credential.OpenOptions{Folder: d.File("."), Wait: 5 * time.Second,
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

// coreFront.ask decides a request and settles its cost. If the request must wait, the method
// advances the clock.
func (f *coreFront) ask(t testing.TB, rs *core.Ruleset, r *Request) Answer {
	t.Helper()
	var plan core.Plan
	plan.Add(rs, r.attributes(f.now))
	d := f.decide(t, &plan)
	if d.Denied() && d.Delay > 0 {
		f.now += d.Delay
		if d = f.decide(t, &plan); !d.Denied() {
			plan.Delayed()
		}
	}
	a := Answer{Since: int64(f.now / counter.Second), Header: http.Header{}, Exact: true, Counted: true}
	a.Until = a.Since
	var writer response.Writer
	fields := writer.Headers(&plan, &d)
	if d.Denied() {
		a.deny(r, &plan, &d, &fields)
		return a
	}
	_, before := f.store.Settled()
	f.settle(t, &plan, &d, r, &fields)
	_, after := f.store.Settled()
	a.Settled = after - before
	a.pass(r, &d, &fields)
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

// coreFront.settle corrects the charge if the response requires this.
func (f *coreFront) settle(t testing.TB, plan *core.Plan, d *core.Decision, r *Request, fields *response.Fields) {
	t.Helper()
	var s core.Settlement
	if d.Outcome == core.OutcomeDegradedAllowed || !plan.Settlement(&s) {
		return
	}
	answered, coding := &upstream{says: &r.Says, kind: "text/plain", head: r.Method == http.MethodHead}, ""
	for _, field := range r.Says.Header {
		switch http.CanonicalHeaderKey(field[0]) {
		case "Content-Type":
			answered.kind = field[1]
		case "Content-Encoding":
			coding = field[1]
		}
	}
	if paths := s.Paths(); len(paths) > 0 && !answered.head {
		answered.tap = usage.New(paths, answered.kind, coding, nil)
		_, _ = answered.tap.Write([]byte(r.Says.Body))
	}
	begun := upstream{says: &Says{Status: r.Says.Status, Header: r.Says.Header}}
	if awaits := len(r.Says.Trailer) > 0 && s.Awaits(&begun); !awaits {
		if cost, known := s.CostNow(answered); known {
			fields.Correct(cost)
		}
	}
	checks, _ := s.Checks(answered)
	if len(checks) == 0 {
		return
	}
	if err := f.store.Take(context.Background(), checks, make([]counter.Result, len(checks))); err != nil {
		t.Fatal(err)
	}
}

// Answer.deny fills in the response to a denied client.
func (a *Answer) deny(r *Request, plan *core.Plan, d *core.Decision, fields *response.Fields) {
	a.Status = d.Status
	a.Header.Set("Content-Type", response.ContentType(d))
	a.addFields(fields)
	if challenge := response.Challenge(d); challenge != "" {
		a.Header.Set("Www-Authenticate", challenge)
	}
	if d.Response != nil {
		for _, field := range d.Response.Headers {
			a.Header.Set(field.Name, field.Value)
		}
	}
	if kind := grpcKind(r.header("Content-Type")); kind != "" {
		code, message := response.GRPCStatus(d)
		a.Status = http.StatusOK
		a.Header.Set("Content-Type", kind)
		a.Header.Set("Grpc-Status", strconv.Itoa(code))
		a.Header.Set("Grpc-Message", message)
		return
	}
	if r.Method != http.MethodHead {
		a.Body = string(response.AppendProblem(nil, plan, d))
	}
}

// grpcKind returns the content type of the answer to a gRPC request with the given content type, or
// "" if the request is not gRPC. A suffix of the request's content type may name the encoding of
// messages.
func grpcKind(asked string) string {
	kind, _, _ := strings.Cut(asked, "+")
	if slices.Contains([]string{"application/grpc", "application/grpc-web", "application/grpc-web-text"}, kind) {
		return kind
	}
	return ""
}

// Answer.pass fills in the upstream's response, with the policy's headers.
func (a *Answer) pass(r *Request, d *core.Decision, fields *response.Fields) {
	a.Passed, a.Status = true, r.Says.Status
	if r.Method != http.MethodHead {
		a.Body = r.Says.Body
	}
	a.Header.Set("Content-Type", "text/plain")
	for _, field := range r.Says.Header {
		a.Header.Set(field[0], field[1])
	}
	fields.Merge(d.Remaining, false, func(f response.Field) []string { return a.Header.Values(response.FieldNames[f]) })
	a.addFields(fields)
}

func (a *Answer) addFields(fields *response.Fields) {
	for i, value := range fields {
		if value != "" {
			a.Header.Set(response.FieldNames[i], value)
		}
	}
}

// Request.attributes returns a request of the corpus in the form in which core reads requests.
func (r *Request) attributes(now counter.Micros) *request.Attributes {
	path, query, _ := strings.Cut(r.Target, "?")
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	a := &request.Attributes{PathText: path, QueryText: query, MethodText: r.Method, HostText: r.Host, PeerAddr: local,
		RemoteAddr: local, Time: now, Headers: map[string]string{}, Attrs: map[string]string{"protocol": "HTTP/1.1"}}
	if query != "" {
		a.Attrs["query"] = query
	}
	lines := map[string][]string{}
	for _, field := range r.Header {
		name := http.CanonicalHeaderKey(field[0])
		lines[name] = append(lines[name], field[1])
		a.Headers[name] = policy.JoinLines(name, lines[name])
	}
	return a
}

func (r *Request) header(name string) string {
	for _, field := range r.Header {
		if http.CanonicalHeaderKey(field[0]) == name {
			return field[1]
		}
	}
	return ""
}

// upstream implements [core.Answer] for the upstream's response that the corpus describes.
type upstream struct {
	says *Says
	kind string
	head bool
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
	_, ranged := u.Header("Content-Range")
	withheld := usage.Withheld(u.head, u.says.Status, ranged)
	if u.tap == nil {
		return core.UnreadMark, withheld
	}
	value, ok := u.tap.JSON(path)
	if u.tap.Unread() || withheld {
		return core.UnreadMark + value, true
	}
	return value, ok
}

// TestCore runs the corpus with core.
func TestCore(t *testing.T) {
	f := newCoreFront(t)
	Run(t, "core", Load(t), f.begin)
}

// TestCoreFailsWrongStories tests that core fails each of the stories with wrong expectations.
func TestCoreFailsWrongStories(t *testing.T) {
	f := newCoreFront(t)
	RunWrong(t, "core", LoadWrong(t), f.begin)
}
