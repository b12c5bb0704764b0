// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"

	"github.com/penstock/penstock/core/counter"
)

// Filter is one plugin in one worker of Envoy: its policy, the requests that wait, and the calls
// under way.
type Filter struct {
	host     Host
	config   Config
	policy   *policy // nil until a policy is loaded
	source   []byte  // the encoding of the policy
	etag     string
	calls    calls
	leases   leases
	gates    gates
	uses     knownUses
	denials  gatheredDenials
	arrivals turnArrivals
	outdated []*Stream // requests that wait for the end of the next poll
	pace     tickPace
	poll     struct {
		due   counter.Micros
		asked counter.Micros // time of the last poll
		under bool
		lost  bool // no bridge had the policy that Envoy provided, so the filter polls from then on
	}
	// The next fields describe the request that is being decided. The field unsure is set if a
	// credential has no verdict, and stale if a verdict is old. The field dated is set if a record,
	// or with a directory also a verdict, is unknown or old. The field named known combines the
	// fingerprints of the verified credentials and of the records. If the request is decided again
	// after the bridge has verified its credentials, bridgeVerdicts holds the bridge's verdicts.
	now            counter.Micros
	unsure         bool
	stale          bool
	dated          bool
	known          uint64
	bridgeVerdicts *verdictReply

	out   outbox
	ended *Stream          // the last stream that ended without a response, until the next one begins
	idle  []*askingData    // for reuse
	dues  []*dueSettlement // likewise
	quiet counter.Micros   // no panic is logged until this time
}

// New returns a filter with the configuration that [ParseConfig] reads. If the configuration cannot
// be used, the error states why, and Envoy keeps the previous configuration.
func New(host Host, configuration []byte) (*Filter, error) {
	config, err := ParseConfig(configuration)
	if err != nil {
		return nil, err
	}
	f := &Filter{host: host, config: config}
	f.calls.sources.key = uint32(newHashKey()[0]) | 1
	if config.Policy != nil {
		if f.policy, err = f.load(config.Policy); err != nil {
			return nil, err
		}
		host.Count(CounterPolicyLoaded)
	}
	return f, nil
}

// Succeed takes over the policy of another filter of this worker with the same bridge, and reports
// whether the filter has a policy. Envoy creates a new filter at every change of its configuration.
// Without Succeed, the new filter would have no policy until the bridge answers.
func (f *Filter) Succeed(other *Filter) bool {
	if f.policy == nil && f.polls() && other.source != nil && f.config.sameBridge(&other.config) {
		if next, err := f.load(other.source); err == nil {
			f.policy, f.source, f.etag = next, other.source, other.etag
		}
	}
	return f.policy != nil
}

// Start polls for a policy if there is none, and starts the ticks. Start returns an error if the
// host rejects ticks.
func (f *Filter) Start() error {
	f.pollPolicy()
	f.quickenTicks()
	if f.pace.every == 0 {
		return errors.New("no ticks")
	}
	return nil
}

// Tick ends the waits whose time is over, and polls for a new policy when a poll is due.
func (f *Filter) Tick() {
	defer f.guard()
	f.ended.abandon() // by this time, a redirect would have continued these streams
	defer f.slowTicks()
	f.beginResuming()
	f.expire()
	f.refundUnneeded()
	f.reportDenials(reportEvery)
	if len(f.leases.extras)+len(f.calls.settling) > 0 {
		f.scheduleFlush() // if this fails, the next tick tries again
	}
	f.pollPolicy()
}

// policyPath is the path of the bridge that returns its policy.
const policyPath = "/v1/policy"

// missingPoll is the longest poll interval while there is no policy.
const missingPoll = counter.Second

// Filter.polls reports whether the filter polls the bridge for policies. If Envoy provides the
// policy, it also provides the next one, but only when Envoy reaches its control plane again. So if
// no bridge had the filter's policy, the filter polls the bridges permanently. A single poll is not
// enough, because one of several bridges might not have read an edit yet, and Envoy does not send
// the same policy again.
func (f *Filter) polls() bool { return f.config.Policy == nil || f.poll.lost }

// pollPolicy polls the bridge for a new policy when a poll is due.
func (f *Filter) pollPolicy() {
	if !f.polls() || f.poll.under {
		return
	}
	now := f.host.Now()
	if isAhead(f.poll.due, now, f.config.Poll) {
		return
	}
	f.poll.asked, f.poll.due = now, now+f.config.Poll
	if f.policy == nil {
		f.poll.due = now + min(f.config.Poll, missingPoll)
	}
	call := f.call("GET", policyPath, nil, uint32(counter.Second/counter.Millisecond))
	if f.etag != "" {
		call.Header = append(call.Header, [2]string{"if-none-match", f.etag})
	}
	f.poll.under = true
	if f.dispatch(call, f.pollEnded) != nil {
		f.pollEnded(Reply{})
	}
}

// pollEnded ends a poll, and decides the requests that waited for it.
//
//go:noinline
func (f *Filter) pollEnded(r Reply) {
	defer f.guard()
	f.beginResuming()
	f.poll.under = false
	if r.Status == 200 || r.Status == 304 {
		f.denials.wanted, f.denials.usage = r.Denials, r.Usage
	}
	f.takePolicy(r)
	list := f.outdated
	f.outdated = nil
	for _, s := range list {
		s.decideArrived()
	}
}

// pollSoon makes the next poll earlier because the bridge does not have the filter's policy.
func (f *Filter) pollSoon() { f.poll.due = min(f.poll.due, f.poll.asked+pollMin) }

// takePolicy puts a polled policy in force. A policy that cannot be read is rejected, and the
// previous one remains in force.
func (f *Filter) takePolicy(r Reply) {
	if r.Status != 200 || r.ETag == f.etag && f.etag != "" {
		return
	}
	next, err := f.load(r.Body)
	f.etag = r.ETag // this policy is not fetched again, even if it is invalid
	if err != nil {
		f.host.Count(CounterPolicyRejected)
		f.host.Warn("penstock: the policy of the bridge is rejected, and the previous one stays: " + err.Error())
		return
	}
	f.policy, f.source, f.poll.due = next, r.Body, f.poll.asked+f.config.Poll
	f.host.Count(CounterPolicyLoaded)
}

// Filter.call returns a request to the bridge.
//
//go:noinline
func (f *Filter) call(method, path string, body []byte, timeoutMillis uint32) Call {
	header := [][2]string{{":method", method}, {":path", path}, {":authority", f.config.Host}}
	if f.config.Token != "" {
		header = append(header, [2]string{"authorization", "Bearer " + f.config.Token})
	}
	return Call{Method: method, Path: path, Header: header, Body: body, TimeoutMillis: timeoutMillis}
}

// Cluster returns Envoy's name for the bridge.
func (f *Filter) Cluster() string { return f.config.Cluster }
