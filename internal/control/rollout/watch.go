// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/fleet"
)

// reasonBytesMax bounds the reason for which a candidate is withdrawn, which may name nodes.
const reasonBytesMax = 500

// counts holds the requests of a policy's rules on one node. The rule "" is the policy itself.
type counts map[string]count

type count struct{ admitted, denied uint64 }

// trial is what the nodes have reported about a candidate.
type trial struct {
	generation int64
	first      map[string]counts // by node: the totals when it first reported the candidate
	// If the candidate is for a share of the clients, last has its requests in the last report of
	// each node, and sums those since the first reports.
	last map[string]count
	sums count

	// The fields below are for a candidate that is to be promoted.
	unsaved     bool  // whether the database lacks some of the totals above
	savedMicros int64 // when they were stored, by the clock of Redis
}

// Share returns the fraction of requests that were denied on the nodes of a candidate. The requests
// of a node count from the node's first report of the candidate. The number of requests is the sum
// of the denials of all rules and the admissions of the rule that admitted the most. Nodes do not
// report the requests that matched no rule, so the true share may be smaller than the result.
func Share(denied, admitted uint64) ledger.Parts {
	return ledger.ShareOf(denied, admitted)
}

// Rollout.watch withdraws the candidates that deny too much, and promotes those whose promotion is
// due.
func (r *Rollout) watch(ctx context.Context, page []ledger.Policy) error {
	var reading *fleet.Reading
	var problems []error
	for i := range page {
		p := &page[i]
		if p.Step != ledger.StepShare || p.DenialsMax == 0 && p.ClientShare == 0 {
			delete(r.nodes, p.Policy)
			continue
		}
		if reading == nil {
			var err error
			if reading, err = fleet.Read(ctx, r.Redis); err != nil {
				return fmt.Errorf("read the denials of the nodes: %w", err)
			}
		}
		if err := r.weigh(ctx, p, reading); err != nil {
			problems = append(problems, fmt.Errorf("policy %q: %w", p.Policy, err))
		}
	}
	return errors.Join(problems...)
}

// Rollout.weigh withdraws a candidate if it denies too much, or if it is for a share of the clients
// and some node cannot decide by the client.
func (r *Rollout) weigh(ctx context.Context, p *ledger.Policy, reading *fleet.Reading) error {
	if unable := unableNodes(p.Policy, reading); p.ClientShare > 0 && unable != "" {
		return r.withdraw(ctx, p, "kinds of nodes", unable)
	}
	if p.DenialsMax == 0 {
		return nil
	}
	candidate, err := r.Ledger.Revision(ctx, p.Policy, p.Candidate)
	if err != nil {
		return err
	}
	t, err := r.trialOf(ctx, p)
	if err != nil {
		return err
	}
	sum := t.sum
	if p.ClientShare > 0 {
		sum = t.sumClients
	}
	nodes, denied, admitted := sum(p.Policy, candidate.Version, reading.Records)
	share := Share(denied, admitted)
	exceeded := denied+admitted >= ledger.RequestsMin && share > p.DenialsMax
	if p.PromoteAfterSeconds > 0 {
		err = r.observe(ctx, p, t, reading, &ledger.Observation{Denied: denied, Admitted: admitted, Exceeded: exceeded,
			ReportedMicros: reportedMicros(p, candidate.Version, reading)})
	}
	switch {
	case exceeded:
		reason := fmt.Sprintf("%v of %d requests on %d nodes were denied, and %v is the bound", share, denied+admitted, nodes, p.DenialsMax)
		return errors.Join(err, r.withdraw(ctx, p, "bound of denials", reason))
	case err == nil && p.PromoteAfterSeconds > 0:
		return r.promote(ctx, p)
	}
	return err
}

// Rollout.withdraw withdraws a candidate. The origin and the reason are for the audit trail.
func (r *Rollout) withdraw(ctx context.Context, p *ledger.Policy, origin, reason string) error {
	reason = reason[:min(len(reason), reasonBytesMax)] // it is ASCII
	_, err := r.Ledger.Publish(ctx, ledger.Actor{Name: "control", Origin: origin}, p.Policy,
		ledger.Publish{Step: ledger.StepWithdraw, Generation: p.Generation}, reason, r.Encode)
	if errors.Is(err, ledger.ErrChanged) {
		return nil // another process or an operator has already withdrawn it
	}
	if err == nil {
		r.Logger.Warn("a candidate of a policy is withdrawn", "policy", p.Policy, "revision", p.Candidate, "reason", reason)
	}
	return err
}

// trial.sum returns how many requests the nodes of a version have decided. The requests of a node
// count from the node's first report of the version.
func (t *trial) sum(policy, version string, records []*fleet.Record) (nodes int, denied, admitted uint64) {
	byRule, present := map[string]uint64{}, map[string]bool{}
	for _, record := range records {
		if !enforces(record, policy, version) {
			continue
		}
		now := counts{}
		for _, rule := range record.Rules {
			if rule.Policy == policy {
				now[rule.Rule] = count{rule.Admitted, rule.Denied}
			}
		}
		present[record.ID] = true
		first, known := t.first[record.ID]
		if !known {
			t.first[record.ID], t.unsaved = now, true
			continue
		}
		nodes++
		for rule, n := range now {
			before := first[rule] // zero for a rule that the node did not have
			denied += n.denied - min(n.denied, before.denied)
			byRule[rule] += n.admitted - min(n.admitted, before.admitted)
		}
	}
	if len(t.first) > fleet.NodesMax { // processes have ended, or Redis contains forged nodes
		maps.DeleteFunc(t.first, func(node string, _ counts) bool { return !present[node] })
	}
	for _, n := range byRule {
		admitted = max(admitted, n)
	}
	return nodes, denied, admitted
}

// enforces reports whether a node has a version of a policy in force.
func enforces(record *fleet.Record, policy, version string) bool {
	for _, p := range record.Policies {
		if p.Name == policy && p.Published == version {
			return true
		}
	}
	return false
}
