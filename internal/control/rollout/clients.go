// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// namedMax is the number of nodes that a message names.
const namedMax = 5

// ByClient returns an error if nodes of this Redis enforce a policy but cannot enforce it for a
// share of the clients. The error names such nodes.
func (r *Rollout) ByClient(ctx context.Context, policy string) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	reading, err := fleet.Read(ctx, r.Redis)
	if err != nil {
		return fmt.Errorf("read the kinds of the nodes: %w", err)
	}
	if unable := unableNodes(policy, reading); unable != "" {
		return &ledger.Invalid{Place: "client_share_percent", Text: unable + ": publish to a share of the nodes, or give these nodes another policy or a later release"}
	}
	return nil
}

// unableNodes describes the nodes that enforce a published policy but cannot enforce it for a share
// of the clients. It returns "" if there are none. Nodes of an earlier release cannot choose the
// policy by the client. Bridges cannot either, because their filters decide without knowing the
// candidate.
func unableNodes(policy string, reading *fleet.Reading) string {
	byFront := map[string][]string{}
	for _, record := range reading.Recent() {
		for _, p := range record.Policies {
			if p.Name == policy && p.Published != "" && !p.ByClient {
				byFront[record.Front] = append(byFront[record.Front], fmt.Sprintf("%+.60q", record.Name))
				break
			}
		}
	}
	var parts []string
	for _, front := range slices.Sorted(maps.Keys(byFront)) {
		names := byFront[front]
		list := strings.Join(names[:min(len(names), namedMax)], ", ")
		if more := len(names) - namedMax; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		if parts = append(parts, fmt.Sprintf("%d of the kind %+.20q (%s)", len(names), front, list)); len(parts) == namedMax {
			break
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "some nodes cannot decide by the client: " + strings.Join(parts, ", ")
}

// checkCounters returns an error that names the rules whose counters belong to several clients and
// differ between the policies. Clients that add or omit a key choose the policy that decides their
// requests, so they could use up the counters of both policies.
func checkCounters(now, candidate *ledger.Revision) error {
	rules := lint.CountedTwice(now.Document, candidate.Document)
	if len(rules) == 0 {
		return nil
	}
	more := ""
	if n := len(rules) - namedMax; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return &ledger.Invalid{Place: "client_share_percent", Text: fmt.Sprintf("the rules %+.60q%s count several clients together, and count anew in revision %d, "+
		"so both policies together would admit up to twice their limits: keep their windows, algorithms and per, or publish the revision to all",
		rules[:min(len(rules), namedMax)], more, candidate.Revision)}
}

// sumClients returns how many requests a candidate for a share of the clients has decided since the
// first report of each node about it. A node counts from zero after a change of its configuration.
func (t *trial) sumClients(policy, version string, records []*fleet.Record) (nodes int, denied, admitted uint64) {
	present := map[string]bool{}
	for _, record := range records {
		now, has := count{}, false
		for _, p := range record.Policies {
			if c := p.Candidate; p.Name == policy && c != nil && c.Published == version {
				now, has = count{now.admitted + c.Admitted, now.denied + c.Denied}, true
			}
		}
		if !has {
			continue
		}
		nodes++
		present[record.ID] = true
		last, known := t.last[record.ID]
		t.last[record.ID] = now
		t.unsaved = t.unsaved || !known || now != last
		switch {
		case !known:
			continue
		case now.admitted < last.admitted || now.denied < last.denied:
			last = count{}
		}
		t.sums.admitted += now.admitted - last.admitted
		t.sums.denied += now.denied - last.denied
	}
	if len(t.last) > fleet.NodesMax { // processes have ended, or Redis contains forged nodes
		maps.DeleteFunc(t.last, func(node string, _ count) bool { return !present[node] })
	}
	return nodes, t.sums.denied, t.sums.admitted
}
