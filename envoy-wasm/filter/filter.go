// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"

	"github.com/penstock/penstock/core"
)

// Filter is what one worker of Envoy has of one plugin: the policy in force, the requests that wait, and the call under
// way.
type Filter struct {
	host     Host
	config   Config
	policy   *policy // nil until there is one
	source   []byte  // what it was read from
	etag     string
	calls    calls
	leases   leases
	gates    gates
	arrivals arrivals
	pace     pace
	poll     struct {
		due   core.Micros
		asked core.Micros // when it was asked last
		under bool
		lost  bool // no bridge knew the policy that Envoy gave: from then on they are asked for theirs
	}
	// Of the request under decision: the time, whether a credential that it shows is not known, or was not heard of lately, the
	// fingerprints of those that are known, and what the bridge said of them, if that is why it is decided again.
	now    core.Micros
	unsure bool
	stale  bool
	known  uint64
	hears  *hearing

	out   outbox
	ended *Stream     // the last that has ended without a response, until the next begins
	idle  []*asking   // to be used again
	dues  []*due      // likewise
	quiet core.Micros // until when no panic is told of
}

// New returns the filter for a configuration, as [ParseConfig] reads it. The error says why it cannot be used; then Envoy
// keeps the one before.
func New(host Host, configuration []byte) (*Filter, error) {
	config, err := ParseConfig(configuration)
	if err != nil {
		return nil, err
	}
	f := &Filter{host: host, config: config}
	if config.Policy != nil {
		if f.policy, err = f.load(config.Policy); err != nil {
			return nil, err
		}
		host.Count(CounterPolicyLoaded)
	}
	return f, nil
}

// Succeed takes over the policy of another filter in this worker that asks the same bridge: Envoy makes a new one for every
// change of its configuration, and until the bridge has answered it would have none. It reports whether there is one.
func (f *Filter) Succeed(other *Filter) bool {
	if f.policy == nil && f.polls() && other.source != nil && f.config.sameBridge(&other.config) {
		if next, err := f.load(other.source); err == nil {
			f.policy, f.source, f.etag = next, other.source, other.etag
		}
	}
	return f.policy != nil
}

// Start asks for a policy, if there is none, and has ticks come. The error says that there would be none.
func (f *Filter) Start() error {
	f.pollPolicy()
	f.hurry()
	if f.pace.every == 0 {
		return errors.New("no ticks")
	}
	return nil
}

// Tick ends the waits that are over, and asks for another policy when it is time.
func (f *Filter) Tick() {
	defer f.guard()
	defer f.slow()
	f.tellOfMore()
	f.expire()
	f.tend()
	f.pollPolicy()
}

// policyPath is where the bridge tells of its policy.
const policyPath = "/v1/policy"

// missingPoll is how often the bridge is asked at least while there is no policy.
const missingPoll = core.Second

// polls reports whether the bridge is asked for policies. Who was given one by Envoy is given the next one too, but that may take as
// long as Envoy needs to find the control plane again: where no bridge knew it, bridges are asked for theirs until then. One answer
// would not do, since it may be by one of several that has not read an edit yet, and Envoy does not give the same policy again.
func (f *Filter) polls() bool { return f.config.Policy == nil || f.poll.lost }

// pollPolicy asks the bridge for another policy, if it is time.
func (f *Filter) pollPolicy() {
	if !f.polls() || f.poll.under {
		return
	}
	now := f.host.Now()
	if ahead(f.poll.due, now, f.config.Poll) {
		return
	}
	f.poll.asked, f.poll.due = now, now+f.config.Poll
	if f.policy == nil {
		f.poll.due = now + min(f.config.Poll, missingPoll)
	}
	call := f.call("GET", policyPath, nil, uint32(core.Second/core.Millisecond))
	if f.etag != "" {
		call.Header = append(call.Header, [2]string{"if-none-match", f.etag})
	}
	f.poll.under = f.dispatch(call, f.polled) == nil
}

// pollSoon has the bridge asked for its policy before it is time, because it does not know ours.
func (f *Filter) pollSoon() { f.poll.due = min(f.poll.due, f.poll.asked+pollMin) }

// polled takes a policy over. One that cannot be read is refused, and the one before stays.
func (f *Filter) polled(r Reply) {
	defer f.guard()
	f.poll.under = false
	if r.Status != 200 || r.ETag == f.etag && f.etag != "" {
		return
	}
	next, err := f.load(r.Body)
	f.etag = r.ETag // not asked for again, good or bad
	if err != nil {
		f.host.Count(CounterPolicyRefused)
		f.host.Warn("penstock: the policy of the bridge is refused, and the one before stays: " + err.Error())
		return
	}
	f.policy, f.source, f.poll.due = next, r.Body, f.poll.asked+f.config.Poll
	f.host.Count(CounterPolicyLoaded)
}

// call returns a request to the bridge.
//
//go:noinline
func (f *Filter) call(method, path string, body []byte, timeoutMillis uint32) Call {
	header := [][2]string{{":method", method}, {":path", path}, {":authority", f.config.Host}}
	if f.config.Token != "" {
		header = append(header, [2]string{"authorization", "Bearer " + f.config.Token})
	}
	return Call{Method: method, Path: path, Header: header, Body: body, TimeoutMillis: timeoutMillis}
}

// Cluster is the bridge's, as Envoy calls it.
func (f *Filter) Cluster() string { return f.config.Cluster }
