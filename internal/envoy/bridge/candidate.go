// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"encoding/binary"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
)

// A candidate is tried out on the requests that the bridge decides. A filter sends only what the
// policy in force reads. If a candidate reads more, the filter's requests count as untried.
// Requests that a filter decides by itself are not tried out.

// triedBytesMax is the greatest total length of the values of a request that is kept for a trial.
// So the queue of trials takes at most 64 MB, and the trials that wait for a response take at most
// 64 MB, too. A larger request counts as untried.
const triedBytesMax = 16 << 10

// candidate is a policy that is tried out beside the one in force.
type candidate struct {
	bridge *Bridge
	policy *live.Policy
	runner *shadow.Runner
	parked parkedTrials
	warned atomic.Pointer[live.Version] // the version about which a warning was logged
}

// openCandidate opens the candidate, if there is one. The policy in force must be open.
func (b *Bridge) openCandidate() error {
	o := &b.options
	if o.ShadowPolicyFile == "" {
		return nil
	}
	c := &candidate{bridge: b}
	settings := b.liveOptions(live.File(o.ShadowPolicyFile))
	settings.FormerMin, settings.FormerMax = 0, 0 // a trial keeps its version itself
	settings.Complete, settings.Prepare, settings.Changed = c.fillDefaults, c.prepare, c.showChange
	var err error
	if c.policy, err = live.Open(settings); err != nil {
		return err
	}
	c.show(c.policy.Current())
	if err := c.policy.Follow(); err != nil {
		return errors.Join(err, c.closePolicy())
	}
	c.runner = shadow.Start(shadow.Options{Store: o.Store, Total: b.metrics.tried, Panicked: func(policy string, reason any) {
		b.logger.Error("a shadow policy has panicked", "policy", policy, "reason", reason, "stack", string(debug.Stack()))
	}})
	b.candidate = c
	return nil
}

// candidate.close ends the trials. It does nothing without a candidate.
func (c *candidate) close() error {
	if c == nil {
		return nil
	}
	c.runner.Stop()
	c.parked.dropAll()
	return c.closePolicy()
}

// closePolicy closes the policy first and hides it in the metrics afterwards, because an edit can
// show the policy again until Close returns.
func (c *candidate) closePolicy() error {
	err := c.policy.Close()
	c.bridge.metrics.Policies.Hide(c)
	return err
}

// candidate.reload reads the candidate's file now. It does nothing without a candidate.
func (c *candidate) reload() error {
	if c == nil {
		return nil
	}
	return c.policy.Reload()
}

// candidate.fillDefaults gives the candidate its own namespace.
func (c *candidate) fillDefaults(d *policyfile.Document) error {
	d.Name = cmp.Or(d.Name, c.bridge.policy.Current().Document.Name) + shadow.Suffix
	return c.bridge.directed(d)
}

// candidate.prepare determines which parts of a request and of a response the candidate
// reads.
func (c *candidate) prepare(v *live.Version) error {
	source, err := v.Document.Policy()
	if err != nil {
		return err
	}
	form := &filterForm{inputs: core.InputsOf(&source), settles: slices.ContainsFunc(source.Rules, func(r policy.Rule) bool {
		return r.CostAfter != nil || len(r.CountIf)+len(r.RefundOn) > 0
	})}
	v.Front = form
	if source.Directory {
		form.directory, err = c.bridge.openDirectory()
	}
	return err
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
	c.bridge.metrics.Policies.Show(c, v.Document, c.policy.Err)
}

// directoryOf returns the directory with which a version of the candidate is evaluated, or nil.
func (c *candidate) directoryOf(rs *core.Ruleset) *directory.Directory {
	if c == nil {
		return nil
	}
	for _, v := range c.policy.Known() {
		if v.Ruleset == rs {
			return formOf(v).directory
		}
	}
	return nil
}

// Trial begins a trial of a request that does not come from a filter. Trial returns nil if there is
// no candidate.
func (o *Observer) Trial(denied bool) *shadow.Trial {
	c := o.b.candidate
	if c == nil {
		return nil
	}
	return c.runner.Begin(c.policy.Current(), denied)
}

// tryOut makes the candidate decide the question's request, in the background. If the filter will
// report the response and the candidate may charge by it, the trial waits for the report.
func (q *question) tryOut(d *core.Decision) {
	c := q.bridge.candidate
	if c == nil {
		return
	}
	t := c.runner.Begin(c.policy.Current(), d.Denied())
	kept := keep(c, q.request)
	if kept == nil {
		t.Drop()
		return
	}
	t.Source = kept
	if q.answer.Receipt != "" && kept.reads != nil && formOf(t.Version).settles {
		c.parked.park(receiptNumber(q.answer.Receipt), t, q.now)
		return
	}
	t.Start()
}

// receiptNumber returns the number of a receipt of this process.
func receiptNumber(receipt string) uint64 {
	return binary.BigEndian.Uint64([]byte(receipt[1+len(process{}):][:8]))
}

// requestCopy is a copy of a request, which a worker reads after the call has been answered.
type requestCopy struct {
	candidate *candidate
	request   policy.Attributes
	reads     *core.Inputs // the values that the filter sent; nil if the whole request is known
	response  *keptResponse
}

// keep copies a request. It returns nil if the request is too large.
func keep(c *candidate, request policy.Attributes) *requestCopy {
	switch from := request.(type) {
	case *wire.View:
		view := &wire.View{Ask: from.Ask.Clone(triedBytesMax), Inputs: from.Inputs, At: from.At}
		if view.Ask != nil {
			return &requestCopy{candidate: c, request: view, reads: from.Inputs}
		}
	case *described: // not copied, because its memory belongs to no call
		if from.size() <= triedBytesMax {
			return &requestCopy{candidate: c, request: from}
		}
	}
	return nil
}

// Plan implements [shadow.Source].
func (k *requestCopy) Plan(t *shadow.Trial) bool {
	form := formOf(t.Version)
	if k.reads != nil {
		if missing := missingInputs(&form.inputs, k.reads); len(missing) > 0 {
			k.candidate.warn(t.Version, missing)
			return false
		}
	}
	t.Add(k.request, form.directory)
	var needs core.Settlement
	if t.Denied || !t.Plan.Expect(&needs) {
		return true
	}
	if k.response == nil || !k.response.covers(&needs) {
		return false
	}
	t.Response = k.response
	return true
}

// Release implements [shadow.Source].
func (k *requestCopy) Release() {}

// missingInputs returns the inputs that are needed but were not sent.
func missingInputs(needs, sent *core.Inputs) (missing []string) {
	for _, name := range needs.Headers {
		if !slices.Contains(sent.Headers, name) {
			missing = append(missing, "header "+name)
		}
	}
	for _, name := range needs.Attrs {
		if !slices.Contains(sent.Attrs, name) {
			missing = append(missing, "attr:"+name)
		}
	}
	if needs.Query && !sent.Query {
		missing = append(missing, "the query")
	}
	return missing
}

// candidate.warn logs, once for each version of the candidate, that it reads inputs that filters
// do not send.
func (c *candidate) warn(v *live.Version, missing []string) {
	if c.warned.Swap(v) != v {
		c.bridge.logger.Warn("the shadow policy reads what the policy in force does not, so filters do not send it and their requests "+
			"count as untried: let a rule of the policy in force read it, as with action log_only", "policy", v.Document.Name,
			"reads", strings.Join(missing, ", "))
	}
}

// described.size returns the number of bytes of the request's names and values.
func (d *described) size() int {
	size := len(d.description.Path) + len(d.description.Method) + len(d.description.Host)
	for _, values := range []map[string]string{d.Headers, d.Attrs} {
		for name, value := range values {
			size += len(name) + len(value)
		}
	}
	return size
}

var _ shadow.Source = (*requestCopy)(nil)
