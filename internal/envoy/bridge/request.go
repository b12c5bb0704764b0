// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/throttle"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// verdictTTL is how long a filter may remember the verdict on a credential. If the client or its
// tier has no limit, the filter does not call the bridge. So a revoked key may be admitted for that
// long, and response headers may show its tier. If there is a limit, the bridge decides by its own
// verdict. A filter that holds leased units uses its remembered verdict for at most a second, or
// half a second if the policy has a directory.
const verdictTTL = 10 * counter.Second

// question is one item of a call and its answer. A question is reused.
type question struct {
	item       wire.Item
	answer     wire.Answer
	verdict    wire.Verdict
	plan       core.Plan
	wait       throttle.Wait
	first      []counter.Check // the checks for the first store call; if empty, there is no call
	throttled  []core.Throttled
	attrs      wire.View
	request    policy.Attributes // the request of the current plan; nil if there is no plan
	clients    lookups
	settlement core.Settlement
	lease      leaseUnits
	span       enforce.Span
	loans      bool  // whether the answer may be [wire.StatusLoan]
	lates      bool  // whether the answer may be [wire.StatusLate]
	failure    error // the error of the store, or nil
	bridge     *Bridge
	version    *live.Version
	now        counter.Micros
}

// question.reset clears the question for a new request.
func (q *question) reset(b *Bridge, v *live.Version, now counter.Micros) {
	q.answer = wire.Answer{Results: q.answer.Results[:0], Leases: q.answer.Leases[:0]}
	q.lease.taken = q.lease.taken[:0]
	q.bridge, q.version, q.now, q.first, q.throttled = b, v, now, nil, nil
	q.request, q.clients.directory, q.loans, q.lates = nil, nil, false, false
	q.span, q.failure = enforce.Span{}, nil
	if v != nil {
		q.clients.directory = formOf(v).directory
	}
}

// question.release drops the request, because its strings keep the memory of the whole call alive
// and some of them are credentials.
func (q *question) release() {
	q.plan.Reset()
	q.request, q.span = nil, enforce.Span{}
	q.clients.forget()
	ask, settle := &q.item.Ask, &q.item.Settle
	clear(ask.Headers)
	clear(ask.Attrs)
	clear(settle.Headers)
	clear(settle.Numbers)
	q.item = wire.Item{Ask: wire.Ask{Headers: ask.Headers[:0], Attrs: ask.Attrs[:0]},
		Settle: wire.Settle{Headers: settle.Headers[:0], Numbers: settle.Numbers[:0]}, Units: q.item.Units[:0]}
	q.answer.Receipt = ""
	clear(q.answer.Leases)
	q.lease.fetch[0] = counter.Check{}
}

// question.begin makes the first plan of a filter's question. The argument named left is the
// remaining verification time of the call, and traced reports whether the question contains the
// trace of its request.
func (q *question) begin(left *counter.Micros, traced bool) {
	defer q.rescue()
	ask := &q.item.Ask
	if q.version == nil {
		q.answer.Status = wire.StatusUnknown
		return
	}
	inputs := formOf(q.version).inputsOf(traced)
	switch {
	case len(ask.Headers) != len(inputs.Headers) || len(ask.Attrs) != len(inputs.Attrs):
		q.answer.Status = wire.StatusInvalid
	default:
		q.attrs = wire.View{Ask: ask, Inputs: inputs, At: q.now}
		q.span = q.bridge.spanOf(&q.attrs, traced)
		q.ask(&q.attrs, left)
	}
}

// question.ask makes the plan of a request. The argument named left is the remaining verification
// time of the call.
func (q *question) ask(a policy.Attributes, left *counter.Micros) {
	q.request = a
	q.plan.Reset()
	q.plan.Hurry(left)
	q.add()
}

// question.prepare prepares the first store call of a planned request.
func (q *question) prepare() {
	if q.request == nil {
		return
	}
	defer q.rescue()
	if q.reportsAdmissions() {
		q.reportAdmissions()
		return
	}
	if q.first = q.plan.Checks(); len(q.first) > 0 {
		if q.throttled = q.plan.Throttled(); len(q.throttled) > 0 {
			q.first = q.wait.First(q.bridge.lines, &q.plan, q.throttled)
		}
	}
	if q.item.Kind >= wire.KindLease {
		q.leases()
	}
	if q.item.Kind == wire.KindLease && len(q.lease.taken) == 0 {
		q.item.Kind = wire.KindAsk
	}
}

// question.decide decides by the store's first answer and completes the question's answer.
func (q *question) decide(err error) core.Decision {
	q.granted(err)
	if err != nil {
		d := q.plan.Fail(err)
		if len(q.throttled) > 0 && q.wait.Unanswered(&d) {
			q.plan.Abandon()
			q.fillDecided(&d)
		} else {
			q.fillDegraded(&d, err)
		}
		return d
	}
	d, answered := q.plan.Decide(), true
	if len(q.throttled) > 0 {
		d, answered = q.wait.Announce(d, q)
	}
	switch {
	case d.Denied() && q.postpones(true):
		q.answer.Status = wire.StatusLoan // the request is counted with its later call
	case answered:
		q.fillDecided(&d)
	}
	return d
}

// question.conclude decides a question of a batch.
func (q *question) conclude(err error) {
	defer q.rescue()
	if q.item.Kind == wire.KindFetch {
		q.fetched(err)
		return
	}
	q.decide(err)
}

// question.rescue ends a question that panics, so that the other questions are answered. It is
// deferred.
func (q *question) rescue() {
	if reason := recover(); reason != nil {
		q.panicked(reason)
	}
}

// question.panicked logs a panic and marks the question's answer as invalid.
func (q *question) panicked(reason any) {
	q.bridge.panicked(reason)
	q.first, q.throttled, q.request = nil, nil, nil
	q.answer = wire.Answer{Status: wire.StatusInvalid, Results: q.answer.Results[:0], Leases: q.answer.Leases[:0]}
}

// Bridge.panicked logs a panic, at most once a second: a caller that has found out how to cause
// panics will repeat it.
func (b *Bridge) panicked(reason any) {
	now := time.Now().Unix()
	if b.quiet.Swap(now) != now {
		b.logger.Error("a question has panicked", "reason", reason, "stack", string(debug.Stack()))
	}
}

// Ask implements [throttle.Asker].
func (q *question) Ask(checks []counter.Check) (core.Decision, bool) {
	d, err := q.bridge.enforcer.Ask(&q.plan, checks)
	if err != nil {
		q.fillDegraded(&d, err)
	}
	return d, err == nil
}

// question.fillDegraded fills in the answer of a question that on_error has decided.
func (q *question) fillDegraded(d *core.Decision, err error) {
	q.answer.Status, q.failure = wire.StatusUnavailable, err
	if core.Overloads(err) { // the filter denies the request
		q.answer.Status = wire.StatusBusy
		if !chargedNothing(err) {
			q.answer.Status = q.late()
		}
	}
	if errors.Is(err, counter.ErrInvalid) {
		q.bridge.logger.Error("the store rejected a question", "error", err)
	}
	q.count(d)
	q.tryOut(d)
}

// chargedNothing reports whether the store has certainly not executed a failed call. The filter may
// then repeat the question.
func chargedNothing(err error) bool {
	return errors.Is(err, counter.ErrInvalid) || counter.Unsent(err)
}

// question.late returns the status of a request that is denied in an overload although it may
// have been charged.
func (q *question) late() wire.Status {
	if q.lates {
		return wire.StatusLate
	}
	return wire.StatusBusy
}

// question.fillDecided fills in the answer of a decided request.
func (q *question) fillDecided(d *core.Decision) {
	if q.plan.Unchecked() {
		// The filter cannot know that a credential was not verified for lack of time.
		q.answer.Status = wire.StatusBusy
		q.count(d)
		q.tryOut(d)
		return
	}
	q.answer.Results = q.plan.AppendUnsharded(q.answer.Results[:0])
	// A delayed request is counted with its later call, which waits.
	decided := d.Delay == 0 || q.item.Kind != wire.KindAsk
	if decided {
		q.count(d)
	}
	q.judge()
	if !d.Denied() && q.plan.Settlement(&q.settlement) {
		q.answer.Receipt = q.sealReceipt()
	}
	if decided {
		q.tryOut(d)
	}
}

// question.count counts the outcome of each rule, the states of the credentials, and costs that are
// missing from headers. It also reports the decision as an event.
func (q *question) count(d *core.Decision) {
	q.bridge.enforcer.Count(&q.plan, d, q.version)
	q.span.End(&q.plan, d, q.failure, q.version)
}

// question.judge adds the verdicts on the credentials and the clients' records to the reply, unless
// the filter has them already. Two of these are valid only for this request, so the filter must not
// remember them: a verdict on a token that there was no time to check, and the absence of a record
// while the directory cannot be read.
func (q *question) judge() {
	known, ttl := q.clients.encode(), int64(verdictTTL)
	if q.clients.unknown {
		ttl = 0
	}
	q.verdict.Ways = q.verdict.Ways[:0]
	for _, c := range q.plan.Credentials() {
		way := wire.Way{Index: c.Method, State: c.State}
		if c.Identity != nil {
			way.Identity = *c.Identity
		}
		if c.Unchecked {
			ttl = 0
		}
		q.verdict.Ways = append(q.verdict.Ways, way)
		known += way.Fingerprint()
	}
	if known != q.item.Ask.Known {
		q.verdict.TTLMicros, q.verdict.Records = ttl, string(q.clients.encoded)
		q.answer.Verdict = &q.verdict
	}
}
