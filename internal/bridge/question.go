// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/tally"
	"github.com/penstock/penstock/internal/throttle"
	"github.com/penstock/penstock/internal/wire"
)

// verdictTTL is how long a filter may remember what a credential is worth: as long as a key that was taken back may go on
// where its tier or client has no limit, for there nobody is asked, or show its tier in a response header. Where there is a
// limit the bridge decides by what it knows itself, or the filter for a second at most, from units that are in hand.
const verdictTTL = 10 * core.Second

// question is one item of a call and its answer. It is used again.
type question struct {
	item       wire.Item
	answer     wire.Answer
	verdict    wire.Verdict
	plan       core.Plan
	wait       throttle.Wait
	first      []core.Check // what the store is asked first; none: nothing
	throttled  []core.Throttled
	attrs      wire.View
	settlement core.Settlement
	lease      leasing
	bridge     *Bridge
	edition    *edition
	now        core.Micros
}

// reset forgets the last request.
func (q *question) reset(b *Bridge, e *edition, now core.Micros) {
	q.answer = wire.Answer{Results: q.answer.Results[:0], Leases: q.answer.Leases[:0]}
	q.lease.taken = q.lease.taken[:0]
	q.bridge, q.edition, q.now, q.first, q.throttled = b, e, now, nil, nil
}

// release lets go of the request: its texts are one piece of memory with those of the whole call, and some are credentials.
func (q *question) release() {
	q.plan.Reset()
	ask, settle := &q.item.Ask, &q.item.Settle
	clear(ask.Headers)
	clear(ask.Attrs)
	clear(settle.Headers)
	clear(settle.Numbers)
	q.item = wire.Item{Ask: wire.Ask{Headers: ask.Headers[:0], Attrs: ask.Attrs[:0]},
		Settle: wire.Settle{Headers: settle.Headers[:0], Numbers: settle.Numbers[:0]}, Units: q.item.Units[:0]}
	q.answer.Receipt = ""
	clear(q.answer.Leases)
	q.lease.fetch[0] = core.Check{}
}

// begin makes the plan of a filter's question. left is what verifiers may still take for its call.
func (q *question) begin(left *core.Micros) {
	defer q.rescue()
	ask, e := &q.item.Ask, q.edition
	switch {
	case e == nil:
		q.answer.Status = wire.StatusUnknown
	case len(ask.Headers) != len(e.reads.Headers) || len(ask.Attrs) != len(e.reads.Attrs):
		q.answer.Status = wire.StatusInvalid
	default:
		q.attrs = wire.View{Ask: ask, Reads: &e.reads, At: q.now}
		q.ask(&q.attrs, left)
		if q.item.Kind >= wire.KindLease {
			q.leases()
		}
		if q.item.Kind == wire.KindLease && len(q.lease.taken) == 0 {
			q.item.Kind = wire.KindAsk
		}
	}
}

// ask makes the plan of a request. left is what verifiers may take for it.
func (q *question) ask(a core.Attributes, left *core.Micros) {
	q.plan.Reset()
	q.plan.Hurry(left)
	q.plan.Add(q.edition.ruleset, a)
	q.first = q.plan.Checks()
	if len(q.first) == 0 {
		return
	}
	if q.throttled = q.plan.Throttled(); len(q.throttled) > 0 {
		q.first = q.wait.First(q.bridge.lines, &q.plan, q.throttled)
	}
}

// decide decides by what the store said to the first question, and completes the answer.
func (q *question) decide(err error) core.Decision {
	q.granted(err)
	if err != nil {
		return q.fail(err)
	}
	d, answered := q.plan.Decide(), true
	if len(q.throttled) > 0 {
		d, answered = q.wait.Announce(d, q)
	}
	if answered {
		q.complete(&d)
	}
	return d
}

// take asks the store what a question needs.
func (q *question) take(t *core.Call) {
	defer q.rescue()
	t.Err = q.bridge.store.Take(context.Background(), t.Checks, t.Results)
}

// conclude decides a question that came with others.
func (q *question) conclude(err error) {
	defer q.rescue()
	if q.item.Kind == wire.KindFetch {
		q.fetched(err)
		return
	}
	q.decide(err)
}

// rescue ends a question that has panicked: those that came with it are answered as without it. It is deferred.
func (q *question) rescue() {
	if reason := recover(); reason != nil {
		q.bridge.panicked(reason)
		q.first, q.throttled = nil, nil
		q.answer = wire.Answer{Status: wire.StatusInvalid, Results: q.answer.Results[:0], Leases: q.answer.Leases[:0]}
	}
}

// panicked logs a panic that is under way, once a second at most: whoever has found what provokes one will do it again.
func (b *Bridge) panicked(reason any) {
	now := time.Now().Unix()
	if b.quiet.Swap(now) != now {
		b.logger.Error("a question has panicked", "reason", reason, "stack", string(debug.Stack()))
	}
}

// Ask implements [throttle.Asker].
func (q *question) Ask(checks []core.Check) (core.Decision, bool) {
	start := time.Now()
	err := q.bridge.store.Take(context.Background(), checks, q.plan.Results())
	q.bridge.metrics.CheckSeconds.Observe(time.Since(start).Seconds())
	if err != nil {
		return q.fail(err), false
	}
	return q.plan.Decide(), true
}

// fail decides without the store.
func (q *question) fail(err error) core.Decision {
	q.bridge.metrics.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc()
	q.answer.Status = wire.StatusUnavailable
	switch {
	case errors.Is(err, core.ErrOverloaded):
		q.answer.Status = wire.StatusBusy // the filter refuses
	case errors.Is(err, core.ErrInvalid):
		q.answer.Status = wire.StatusInvalid
		q.bridge.logger.Error("a question was refused by the store", "error", err)
	}
	d := q.plan.Fail(err)
	q.count()
	return d
}

// complete fills in the answer of a request that was decided.
func (q *question) complete(d *core.Decision) {
	q.answer.Results = q.plan.AppendTold(q.answer.Results[:0])
	if d.Delay == 0 || q.item.Kind != wire.KindAsk { // or else the call that waits for it is counted
		q.count()
	}
	q.judge()
	if d.Refused() {
		return
	}
	if q.plan.Settlement(&q.settlement) {
		q.answer.Receipt = q.bridge.sealer.seal(q.edition.version, &q.settlement, q.edition.ruleset, q.now)
	}
}

// count counts what became of each rule, what the credentials were worth, and costs that headers did not say.
func (q *question) count() {
	if n := q.plan.UnreadableCosts(); n > 0 {
		q.bridge.metrics.Unreadable.Add(float64(n))
	}
	q.edition.credentials.Count(q.plan.Credentials())
	q.edition.outcomes.Count(q.plan.Outcomes())
}

// judge says what the credentials are worth, unless the filter knows. One that there was no time for is not to be remembered.
func (q *question) judge() {
	known, ttl := uint64(0), int64(verdictTTL)
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
		q.verdict.TTLMicros = ttl
		q.answer.Verdict = &q.verdict
	}
}
