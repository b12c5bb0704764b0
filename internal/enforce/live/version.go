// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// Version is one version of a policy, ready to decide requests. The exported fields of a version do
// not change.
type Version struct {
	// ID is the hash of the document, as returned by [policyfile.Document.Version].
	ID       string
	Document *policyfile.Document
	Ruleset  *core.Ruleset
	// events defines which decisions of the version are reported. For rules that have their own
	// settings, ruleEvents defines this by name.
	events     policy.Events
	ruleEvents map[string]policy.Events
	reports    [2]bool // whether any decision is reported, and whether any denial is reported
	// Outcomes, Endpoints, Denials and Credentials count the requests under this version.
	Outcomes    *metrics.Rules
	Endpoints   *metrics.Endpoints
	Denials     *metrics.Denials
	Credentials *metrics.Credentials
	// Front is the value that Options.Prepare set.
	Front any

	trial     *trial            // nil unless a candidate decides for a share of the clients
	verifiers *versionVerifiers // the verifiers, which are open until no request can begin with the version
	replaced  time.Time         // guarded by Policy.editing
}

// Count counts the outcomes and credentials of the plan's request, and the decision if the version
// is a candidate.
func (v *Version) Count(plan *core.Plan, d *core.Decision) {
	v.Credentials.Count(plan.Credentials())
	v.Outcomes.Count(plan.Outcomes())
	v.Endpoints.Count(plan)
	v.Denials.Count(plan.Outcomes(), plan.Identity().Tier)
	if v.trial != nil {
		v.trial.count(v, plan, d)
	}
}

func (v *Version) setEvents(of policy.Events, rules map[string]policy.Events) {
	v.events, v.ruleEvents = of, rules
	v.reports = [2]bool{of.Reports(), of.Denied}
	for _, one := range rules {
		v.reports = [2]bool{v.reports[0] || one.Reports(), v.reports[1] || one.Denied}
	}
}

// Reports reports whether any decision of the version is reported as an event.
func (v *Version) Reports() bool { return v.reports[0] }

// ReportsDenials reports whether any denial of the version is reported as an event.
func (v *Version) ReportsDenials() bool { return v.reports[1] }

// EventsOf returns which decisions of a rule are reported. The rule "" stands for the policy
// itself.
func (v *Version) EventsOf(rule string) policy.Events {
	if v.ruleEvents != nil {
		if own, ok := v.ruleEvents[rule]; ok {
			return own
		}
	}
	return v.events
}

// KeysReady reports whether every key set that comes from a URL has been fetched. Until a key set
// has been fetched, the tokens of its issuer are invalid.
func (v *Version) KeysReady() bool {
	if c := v.Candidate(); c != nil && !c.verifiers.ready() {
		return false
	}
	return v.verifiers.ready()
}

// Verifiers returns one verifier for each entry of the document's list "identify", in the same
// order. For an entry that needs no verifier, the result contains nil.
func (v *Version) Verifiers() []policy.Verifier { return v.verifiers.list }

// Options.compile builds a version from a document, with its candidate. It leaves nothing open on
// an error.
func (o *Options) compile(d *policyfile.Document) (*Version, error) {
	c := d.Candidate()
	if c == nil {
		return o.compileOne(d, nil)
	}
	candidate, err := o.compileOne(c.Document, nil)
	if err != nil {
		return nil, fmt.Errorf("the candidate for a share of the clients: %w", err)
	}
	v, err := o.compileOne(d, &trial{candidate: candidate, share: c.Share, salt: c.Salt})
	if err != nil {
		return nil, errors.Join(err, candidate.close())
	}
	return v, nil
}

// compileOne builds a version from a document, and attaches the trial, which may be nil. It
// converts a panic into an error, and leaves nothing open on an error.
func (o *Options) compileOne(d *policyfile.Document, t *trial) (v *Version, err error) {
	var opened *versionVerifiers
	defer func() {
		if reason := recover(); reason != nil {
			err = &policyfile.PanicError{Reason: reason, Stack: debug.Stack()}
		}
		if err != nil {
			v, err = nil, errors.Join(err, opened.close())
		}
	}()
	for _, front := range o.Fronts {
		if problems := lint.Beyond(d, front); len(problems) > 0 {
			return nil, problems
		}
	}
	if err := d.InRegion(o.Region); err != nil {
		return nil, err
	}
	if opened, err = o.Verifiers.openFor(d); err != nil {
		return nil, errors.Join(err, d.Check())
	}
	ruleset, err := d.CompileWith(opened.list)
	if err != nil {
		return nil, err
	}
	v = &Version{ID: d.Version(), Document: d, Ruleset: ruleset, Outcomes: o.Metrics.Rules(d.Name, ruleset),
		Endpoints: o.Metrics.EndpointsOf(d, ruleset), Denials: o.Metrics.DenialsOf(d, ruleset), Credentials: o.Metrics.CredentialsOf(d, ruleset), verifiers: opened}
	v.setEvents(d.EventSettings())
	t.attach(v)
	if o.Prepare != nil {
		if err := o.Prepare(v); err != nil {
			return nil, err
		}
	}
	return v, nil
}
