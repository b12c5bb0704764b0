// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/fleet"
)

const (
	// The totals of nodes change with each request, so they are stored only every saveEveryMicros.
	saveEveryMicros = 10e6
	// savedBytesMax bounds the totals that are stored. If they are longer, a process that continues
	// the trial counts requests from the first reports that it reads itself.
	savedBytesMax = 1 << 20
)

// savedTrial is the form of a trial in the database.
type savedTrial struct {
	First map[string]counts `json:"first,omitempty"`
	Last  map[string]count  `json:"last,omitempty"`
	Sums  count             `json:"sums"`
}

// MarshalJSON implements [json.Marshaler].
func (c count) MarshalJSON() ([]byte, error) { return json.Marshal([2]uint64{c.admitted, c.denied}) }

// UnmarshalJSON implements [json.Unmarshaler].
func (c *count) UnmarshalJSON(text []byte) error {
	var pair [2]uint64
	err := json.Unmarshal(text, &pair)
	c.admitted, c.denied = pair[0], pair[1]
	return err
}

// trialOf returns what the nodes have reported about the candidate of a policy. After a start of
// the process, the result is what earlier processes have stored.
func (r *Rollout) trialOf(ctx context.Context, p *ledger.Policy) (*trial, error) {
	if t := r.nodes[p.Policy]; t != nil && t.generation == p.Generation {
		return t, nil
	}
	t := &trial{generation: p.Generation, first: map[string]counts{}, last: map[string]count{}}
	if p.PromoteAfterSeconds > 0 {
		text, err := r.Ledger.ObservedTotals(ctx, r.Region, p.Policy, p.Generation)
		if err != nil {
			return nil, err
		}
		if err := t.restore(text); err != nil {
			return nil, fmt.Errorf("the totals of the nodes in candidate_observations: %w", err)
		}
	}
	r.nodes[p.Policy] = t
	return t, nil
}

// trial.restore continues a trial that was stored; text is nil if there is none.
func (t *trial) restore(text []byte) error {
	if text == nil {
		return nil
	}
	saved := savedTrial{First: t.first, Last: t.last}
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	t.first, t.last, t.sums = saved.First, saved.Last, saved.Sums
	return nil
}

// Rollout.observe stores what the nodes have reported about a candidate until now.
func (r *Rollout) observe(ctx context.Context, p *ledger.Policy, t *trial, reading *fleet.Reading, o *ledger.Observation) error {
	o.Region, o.Policy, o.Generation = r.Region, p.Policy, p.Generation
	o.Serves = o.ReportedMicros > 0
	for _, record := range reading.Recent() {
		for i := range record.Policies {
			one := &record.Policies[i]
			o.Serves = o.Serves || one.Name == p.Policy && one.Published != ""
		}
	}
	// The first totals of a node are stored at once. The totals of a candidate for a share of the
	// clients change with each report. They contain sums, so it is enough to store them from time
	// to time.
	save := t.unsaved && (p.ClientShare == 0 || reading.NowMicros-t.savedMicros >= saveEveryMicros)
	if save {
		saved := savedTrial{First: t.first, Last: t.last, Sums: t.sums}
		text, err := json.Marshal(&saved)
		if err != nil {
			return err
		}
		if len(text) <= savedBytesMax {
			o.Totals = text
		}
	}
	err := r.Ledger.Observe(ctx, o)
	if err == nil && save {
		t.unsaved, t.savedMicros = false, reading.NowMicros
	}
	return err
}

// reportedMicros returns the instant of the last report of a node with a candidate, or 0 if no such
// node reports now. A record whose instant is in the future counts as written now.
func reportedMicros(p *ledger.Policy, version string, reading *fleet.Reading) (last int64) {
	for _, record := range reading.Recent() {
		if p.ClientShare > 0 && tries(record, p.Policy, version) || p.ClientShare == 0 && enforces(record, p.Policy, version) {
			last = max(last, min(record.SeenMicros, reading.NowMicros))
		}
	}
	return last
}

// tries reports whether a node has a version of a policy as the candidate for a share of the
// clients.
func tries(record *fleet.Record, policy, version string) bool {
	for _, p := range record.Policies {
		if p.Name == policy && p.Candidate != nil && p.Candidate.Published == version {
			return true
		}
	}
	return false
}

// Rollout.promote publishes a candidate to all nodes if its promotion is due.
func (r *Rollout) promote(ctx context.Context, p *ledger.Policy) error {
	after, err := r.Ledger.Promote(ctx, p, r.Encode)
	if err == nil && after != nil {
		r.Logger.Info("a candidate of a policy is promoted", "policy", p.Policy, "revision", after.Revision)
	}
	return err
}
