// SPDX-License-Identifier: Apache-2.0

package enforce_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

// scriptedStore answers each call with the next error of a list, and panics if that error is
// errPanic.
type scriptedStore struct{ errs []error }

func (s *scriptedStore) Take(_ context.Context, _ []counter.Check, results []counter.Result) error {
	err := s.errs[0]
	if len(s.errs) > 1 {
		s.errs = s.errs[1:]
	}
	if err == errPanic {
		panic("scripted")
	}
	for i := range results {
		results[i] = counter.Result{}
	}
	return err
}

type panicError struct{}

func (panicError) Error() string { return "panic" }

var errPanic error = panicError{}

// readCalls returns the number of store calls, and of failures by their kind, according to the
// metrics.
func readCalls(t *testing.T, m *metrics.Metrics) (calls uint64, failures string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.CheckSeconds, m.StoreErrors)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, family := range families {
		for _, one := range family.GetMetric() {
			calls += one.GetHistogram().GetSampleCount()
			for range int(one.GetCounter().GetValue()) {
				kinds = append(kinds, one.GetLabel()[0].GetValue())
			}
		}
	}
	return calls, strings.Join(kinds, " ")
}

func plan(t *testing.T, onError string) *core.Plan {
	t.Helper()
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML,
		[]byte("name: shop\non_error: "+onError+"\nrules: [{name: all, per: [], limit: 5/1m}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	client, err := operator.Parse(operator.Words{Client: "ip:192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	p := new(core.Plan)
	p.Add(rs, client)
	return p
}

func TestAskDecidesByTheStoreOrByOnError(t *testing.T) {
	for _, c := range []struct {
		onError string
		err     error
		denied  bool
		failure string
	}{
		{onError: "deny", err: nil, denied: false, failure: ""},
		{onError: "deny", err: counter.ErrUnavailable, denied: true, failure: "other"},
		{onError: "allow", err: counter.ErrUnavailable, denied: false, failure: "other"},
		{onError: "allow", err: counter.ErrOverloaded, denied: true, failure: "overloaded"},
		{onError: "allow", err: counter.ErrInvalid, denied: true, failure: "invalid"},
		{onError: "deny", err: context.Canceled, denied: true, failure: "canceled"},
	} {
		m := metrics.New()
		e, p := enforce.New(&scriptedStore{errs: []error{c.err}}, m), plan(t, c.onError)
		d, err := e.Ask(p, p.Checks())
		if d.Denied() != c.denied || err != c.err {
			t.Errorf("on_error %s, store error %v: denied %t, error %v", c.onError, c.err, d.Denied(), err)
		}
		if calls, failures := readCalls(t, m); calls != 1 || failures != c.failure {
			t.Errorf("%d calls observed, failures %q, want 1 and %q", calls, failures, c.failure)
		}
	}
}

// panicLog collects the panics of a batch.
type panicLog []int

func (r *panicLog) Panicked(call int, _ any) { *r = append(*r, call) }

// TestACallThatPanicsSpoilsNoOther: the other calls of the batch are answered, and the batch counts
// as one call.
func TestACallThatPanicsSpoilsNoOther(t *testing.T) {
	m := metrics.New()
	e := enforce.New(&scriptedStore{errs: []error{nil, errPanic, counter.ErrUnavailable}}, m)
	calls := make([]counter.Call, 3)
	var panics panicLog
	e.TakeAll(t.Context(), calls, &panics)
	if !slices.Equal(panics, []int{1}) || calls[0].Err != nil || calls[1].Err != nil || calls[2].Err != counter.ErrUnavailable {
		t.Errorf("panics %v, calls %+v", panics, calls)
	}
	if calls, failures := readCalls(t, m); calls != 1 || failures != "other" {
		t.Errorf("%d calls observed, failures %q", calls, failures)
	}
}

func TestAskingAllocatesNothing(t *testing.T) {
	e, p := enforce.New(&scriptedStore{errs: []error{nil}}, metrics.New()), plan(t, "deny")
	if n := testing.AllocsPerRun(100, func() { _, _ = e.Ask(p, p.Checks()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
