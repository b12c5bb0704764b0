// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/request"
)

// outageTest tests the log of store outages with a clock that the test advances.
type outageTest struct {
	t        *testing.T
	out      bytes.Buffer
	now      time.Time
	due      []func()
	enforcer *Enforcer
	err      error // the error of the store
	plans    map[string]*core.Plan
}

func newOutageTest(t *testing.T) *outageTest {
	o := &outageTest{t: t, now: time.Unix(1_700_000_000, 0), plans: map[string]*core.Plan{}}
	outages := NewOutages(slog.New(slog.NewTextHandler(&o.out, &slog.HandlerOptions{ReplaceAttr: withoutTime})))
	outages.now = func() time.Time { return o.now }
	outages.after = func(_ time.Duration, f func()) { o.due = append(o.due, f) }
	o.enforcer = New(o, metrics.New())
	o.enforcer.Log(outages)
	return o
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}

// Take implements counter.Store.
func (o *outageTest) Take(context.Context, []counter.Check, []counter.Result) error { return o.err }

// outageTest.request decides n requests under the given on_error.
func (o *outageTest) request(n int, onError string) {
	o.t.Helper()
	plan := o.plans[onError]
	if plan == nil {
		d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte("{on_error: "+onError+", rules: [{name: all, limit: 5/1m}]}"))
		if err != nil {
			o.t.Fatal(err)
		}
		rs, err := d.Compile()
		if err != nil {
			o.t.Fatal(err)
		}
		plan = new(core.Plan)
		plan.Add(rs, &request.Attributes{PathText: "/", MethodText: "GET", PeerAddr: netip.MustParseAddr("192.0.2.1")})
		o.plans[onError] = plan
	}
	for range n {
		d, _ := o.enforcer.Ask(plan, plan.Checks())
		o.enforcer.Count(plan, &d)
	}
}

// outageTest.pass advances the clock and runs the checks that are due.
func (o *outageTest) pass(d time.Duration) {
	o.now = o.now.Add(d)
	due := o.due
	o.due = nil
	for _, f := range due {
		f()
	}
}

// outageTest.wantLines fails the test unless exactly these lines were logged since its last call.
func (o *outageTest) wantLines(want ...string) {
	o.t.Helper()
	if got, want := o.out.String(), strings.Join(want, ""); got != want {
		o.t.Errorf("logged\n%s, want\n%s", got, want)
	}
	o.out.Reset()
}

// TestAnOutageIsTwoLines: the log has the beginning of an outage with the reason, and its end with
// the length and the number of requests that were decided without the store.
func TestAnOutageIsTwoLines(t *testing.T) {
	o := newOutageTest(t)
	o.request(3, "allow")
	o.wantLines()
	o.err = fmt.Errorf("connection refused: %w", counter.ErrUnavailable)
	began := "msg=\"the store does not answer, on_error decides\" error=\"" + o.err.Error() + "\"\n"
	o.request(17_000, "allow")
	o.pass(time.Minute)
	o.request(951, "deny")
	o.wantLines(began)
	o.err = nil
	o.pass(time.Minute) // without requests, there is no evidence that the store is back
	o.wantLines()
	o.request(1, "allow")
	o.wantLines()
	o.pass(outageQuiet)
	o.wantLines("msg=\"the store answers again\" outage=1m0s requests=17951 admitted=17000 admitted_locally=0 denied=951\n")
	o.request(5, "allow")
	o.pass(time.Minute)
	o.wantLines()
	o.err = fmt.Errorf("connection refused: %w", counter.ErrUnavailable)
	o.request(1, "deny")
	o.wantLines(began)
}

// TestAnOutageOfOneServerIsOneOutage: answers of other servers in between do not end an outage.
func TestAnOutageOfOneServerIsOneOutage(t *testing.T) {
	o := newOutageTest(t)
	for range 10 {
		o.err = counter.ErrUnavailable
		o.request(1, "deny")
		o.err = nil
		o.request(1, "deny")
		o.pass(outageQuiet / 2)
	}
	if lines := strings.Count(o.out.String(), "\n"); lines != 1 {
		t.Errorf("%d lines, want 1:\n%s", lines, o.out.String())
	}
	o.out.Reset()
	o.request(1, "deny")
	o.pass(outageQuiet)
	o.wantLines("msg=\"the store answers again\" outage=9s requests=10 admitted=0 admitted_locally=0 denied=10\n")
}

// TestAnOverloadIsTwoLines: too many requests are not logged as an outage.
func TestAnOverloadIsTwoLines(t *testing.T) {
	o := newOutageTest(t)
	o.err = counter.ErrOverloaded
	o.request(40, "allow")
	o.wantLines("msg=\"more requests wait for the store than it can answer, and are denied\" error=\"" + counter.ErrOverloaded.Error() + "\"\n")
	o.pass(outageQuiet / 2)
	o.wantLines()
	o.pass(outageQuiet / 2)
	o.wantLines("msg=\"the store answers all requests again\" overload=0s denied=40\n")
	o.err = counter.ErrInvalid
	o.request(1, "allow")
	o.err = context.Canceled
	o.request(1, "allow")
	o.wantLines()
}
