// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/http"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// A filter denies many requests without a call: requests of clients that were denied a moment ago,
// and requests of clients that the policy blocks. If the policy reports denials, the bridge asks
// its filters to report these denials once a second, by client and rule. A hostile filter may
// report denials that did not happen, but it could also cause real denials by its questions.
//
// If usage is counted, filters also report the requests that they admit without a call: requests
// admitted from leased units, and requests that no limit counts.

var (
	denialsHeader = http.CanonicalHeaderKey(wire.DenialsHeader)
	denialsWanted = []string{"1"}
	usageWanted   = []string{wire.WantsUsage}
)

// admissionsMax bounds the number of requests in one report.
const admissionsMax = 1 << 40

// askForDenials asks the filter to report its denials, if the policy in force reports any. If usage
// is counted, askForDenials also asks the filter to report its admissions.
func (b *Bridge) askForDenials(header http.Header) {
	switch {
	case b.options.Meter.On():
		header[denialsHeader] = usageWanted
	case b.options.Events != nil && b.policy.Current().ReportsDenials():
		header[denialsHeader] = denialsWanted
	}
}

// reportDenials reports the denials of a filter as events, or plans the request that a report of
// admissions describes. The argument named left is the remaining verification time of the call, and
// traced reports whether the question contains the trace of its request.
func (q *question) reportDenials(left *counter.Micros, traced bool) {
	defer q.rescue()
	ask := &q.item.Ask
	if q.version == nil {
		q.answer.Status = wire.StatusUnknown
		return
	}
	inputs := formOf(q.version).inputsOf(traced)
	if len(ask.Headers) != len(inputs.Headers) || len(ask.Attrs) != len(inputs.Attrs) || len(q.item.Units) != 1 ||
		q.item.Units[0].Cost == 0 || q.item.Units[0].Cost < -admissionsMax || q.item.Units[0].Max < 0 {
		q.answer.Status = wire.StatusInvalid
		return
	}
	u := &q.item.Units[0]
	q.attrs = wire.View{Ask: ask, Inputs: inputs, At: q.now}
	if q.reportsAdmissions() {
		if q.bridge.options.Meter.On() {
			q.ask(&q.attrs, left) // the directory is read before the admissions are counted
		}
		return
	}
	q.ask(&q.attrs, left)
	q.request = nil // nothing is read or charged for a reported denial
	d := q.deniedAt(u.Check)
	if !d.Denied() || q.clients.unknown { // the credential, the list or the record has changed in the meantime
		q.answer.Status = wire.StatusUnknown
		return
	}
	q.bridge.enforcer.ReportDenials(&q.plan, &d, q.version, uint64(u.Cost), uint64(u.Max))
}

// deniedAt returns the decision about the plan's request if the check denies it. If the plan has no
// checks, the policy alone decides. If check is not one of the plan's checks, the result is the
// denial of an overload.
func (q *question) deniedAt(check int) core.Decision {
	checks, results := q.plan.Checks(), q.plan.Results()
	switch {
	case len(checks) == 0:
		return q.plan.Decide()
	case check < 0 || check >= len(checks):
		return q.plan.Overload()
	}
	clear(results)
	results[check] = counter.Result{Denied: true, Wait: counter.Second, At: q.now}
	return q.plan.Decide()
}
