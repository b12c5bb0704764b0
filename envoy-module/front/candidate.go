// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
)

// triedBytesMax bounds the total length of a request's values that are copied for a trial. For a
// larger request there is no trial.
const triedBytesMax = 16 << 10

// candidate is a policy that is tried out beside the policy in force.
type candidate struct {
	front  *Front
	policy *live.Policy
	runner *shadow.Runner
}

// openCandidate opens the candidate, if there is one. The policy in force must be open.
func (f *Front) openCandidate() error {
	var source live.Source
	switch p, _ := f.settings.published(); {
	case p != nil:
		tried, err := f.publishedSource(true)
		if err != nil {
			return err
		}
		source = tried
	case f.settings.ShadowPolicy != "":
		source = live.File(f.settings.ShadowPolicy)
	default:
		return nil
	}
	c, o := &candidate{front: f}, f.liveOptions(source)
	o.Complete, o.Changed = c.fillDefaults, c.showChange
	var err error
	if c.policy, err = live.Open(o); err != nil {
		return err
	}
	c.show(c.policy.Current())
	if err := c.policy.Follow(); err != nil {
		return errors.Join(err, c.closePolicy())
	}
	c.runner = shadow.Start(shadow.Options{Store: f.store.Requests, Total: f.process.tried, Panicked: func(_ string, reason any) { f.process.countPanic(reason) }})
	f.candidate = c
	return nil
}

// candidate.close ends the trials. It does nothing without a candidate.
func (c *candidate) close() error {
	if c == nil {
		return nil
	}
	c.runner.Stop()
	return c.closePolicy()
}

// closePolicy closes the policy and then hides it in the metrics. In the other order, an edit of
// the policy could show it again.
func (c *candidate) closePolicy() error {
	err := c.policy.Close()
	c.front.process.metrics.Policies.Hide(c)
	return err
}

// fillDefaults fills in what the candidate leaves to the configuration, and gives the candidate a
// namespace of its own.
func (c *candidate) fillDefaults(d *policyfile.Document) error {
	if d.Name == "" {
		d.Name = c.front.policy.Current().Document.Name
	}
	if err := c.front.settings.fillDefaults(d); err != nil {
		return err
	}
	d.Name += shadow.Suffix
	return nil
}

// candidate.showChange shows the version named now in the metrics, if it replaces another one. When
// the first version is loaded, the field named policy is still nil, so showChange does nothing.
// Once openCandidate has set that field, it calls show for the first version.
func (c *candidate) showChange(before, now *live.Version) {
	if before != nil {
		c.show(now)
	}
}

// candidate.show shows a version in the metrics.
func (c *candidate) show(v *live.Version) {
	c.front.process.metrics.Policies.Show(c, v.Document, c.policy.Err)
}

// candidate.current returns the version of the candidate that is evaluated beside the policy in
// force. It returns nil if there is no candidate, or if the candidate is disabled.
func (c *candidate) current() *live.Version {
	if c == nil {
		return nil
	}
	now := c.policy.Current()
	if enabled := now.Document.Enabled; enabled != nil && !*enabled {
		return nil
	}
	return now
}

// pair holds what two versions together read from a request: one of the policy, and one of the
// candidate.
type pair struct {
	version, candidate *live.Version
	reads              *exchange.Reads
}

// readsWith returns what a version of the policy and a version of the candidate read from a
// request. The candidate may be nil.
func (f *Front) readsWith(v, candidate *live.Version) *exchange.Reads {
	if candidate == nil {
		return readsOf(v)
	}
	known := f.pair.Load()
	if known == nil || known.version != v || known.candidate != candidate {
		reads := exchange.ReadsOf(readsOf(v).Union(readsOf(candidate).Inputs))
		known = &pair{v, candidate, &reads}
		f.pair.Store(known)
	}
	return known.reads
}

// trialResponse is a response on which the cost of a trial depends.
type trialResponse struct {
	exchange.Settling
	trial *shadow.Trial
}

var _ shadow.Response = (*trialResponse)(nil)

// Pending implements [shadow.Response].
func (r *trialResponse) Pending() *core.Settlement { return &r.Settlement }

// Release implements [shadow.Response].
func (r *trialResponse) Release() { r.Close() }

// tryOut makes the candidate decide the request in the background. If a cost depends on the
// response, the trial starts when the response is known.
func (s *Stream) tryOut(denied bool) {
	if s.candidate == nil {
		return
	}
	t := s.front.candidate.runner.Begin(s.candidate, denied)
	ask := s.request.Ask.Clone(triedBytesMax)
	if ask == nil {
		t.Drop()
		return
	}
	t.Add(&wire.View{Ask: ask, Inputs: s.request.View.Inputs, At: s.request.View.At}, s.front.store.directory)
	if !denied {
		r := &trialResponse{trial: t}
		if t.Plan.Expect(&r.Settlement) {
			t.Response, s.tried = r, r
			return
		}
	}
	t.Start()
}

// trialResponse.begin reads the beginning of the response. It reports whether the trial waits for
// more of the response.
func (r *trialResponse) begin(b *exchange.Beginning) (waits bool) {
	if r.Begin(b) {
		r.trial.Start()
		return false
	}
	return true
}

// trialResponse.end starts the trial at the end of the response. If the argument named passed is
// false, the request was not passed on, and the trial is dropped.
func (r *trialResponse) end(passed bool) {
	if !passed {
		r.trial.Drop()
		return
	}
	if r.Incomplete() {
		r.Cut()
	}
	r.trial.Start()
}
