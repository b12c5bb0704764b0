// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
)

// frontName is the name of this front in metrics and in lists of nodes.
const frontName = "module"

// Process.operators returns the API of operators for the configurations that count in the store.
func (p *Process) operators(s *sharedStore) *operator.API {
	api := &operator.API{Desk: &operator.Desk{Store: s.Requests, Directory: s.directory, Denials: p.reports.log.Recent,
		Policies: func() []operator.Policy { return p.operated(s) }}, Front: "module",
		DirectoryRemedy: "write directory: {} in the configuration of the filter", Reload: func() error { return p.reload(s) }, Node: s.node}
	if s.Redis != nil {
		api.Others = func(ctx context.Context) (*fleet.Reading, error) { return fleet.Read(ctx, s.Redis) }
		api.Follow = fleet.In(s.Redis)
	}
	return api
}

// frontsOf returns the fronts that count in a store, the oldest first.
func (p *Process) frontsOf(s *sharedStore) (all []*Front) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.fronts {
		if f.store == s {
			all = append(all, f)
		}
	}
	return all
}

// Process.operated returns the policies that count in a store. A policy that several configurations
// have is returned once, because they share its counters.
func (p *Process) operated(s *sharedStore) (all []operator.Policy) {
	type place struct{ source, version string }
	known := map[place]bool{}
	for _, f := range slices.Backward(p.frontsOf(s)) {
		for _, one := range f.policies() {
			now := one.Current()
			at := place{source: one.Source()}
			if at.source == "" {
				at.version = now.ID
			}
			at.source += "\x00" + now.Document.Name
			if known[at] {
				continue
			}
			known[at] = true
			all = append(all, operator.Policy{Ruleset: now.Ruleset, Document: now.Document, Verifiers: now.Verifiers(), File: one.Source(),
				Rejected: one.Err() != nil, Candidate: operator.CandidateOf(now)})
		}
	}
	slices.Reverse(all)
	return all
}

// Process.reload loads the policy files of a store now, and returns the reasons if any file is
// rejected.
func (p *Process) reload(s *sharedStore) error {
	var problems []error
	for _, f := range p.frontsOf(s) {
		problems = append(problems, f.Reload())
	}
	return errors.Join(problems...)
}

// Process.totals returns the numbers of requests, by rule.
func (p *Process) totals() (all []fleet.Total) {
	for _, total := range p.metrics.Totals() {
		all = append(all, fleet.Total(total))
	}
	return all
}

// Front.policies returns the policy in force and the candidate, if there is one.
func (f *Front) policies() []*live.Policy {
	if f.candidate.current() == nil {
		return []*live.Policy{f.policy}
	}
	return []*live.Policy{f.policy, f.candidate.policy}
}
