// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// promoteMin and promoteMax bound the time for which a candidate is observed, in seconds.
	promoteMin, promoteMax = 60, 31 * 24 * 60 * 60
	// RequestsMin is the number of requests that a candidate must have decided before it can be
	// withdrawn because of its denials, or promoted.
	RequestsMin = 100
	// reportGap is the longest time between two reports that still counts as time of observation.
	reportGap = 30 * time.Second
	// A region counts as observed only if a process has looked at it within the time lookedWithin.
	lookedWithin = time.Minute
)

// Promotion says when a candidate will be published to all nodes automatically. This happens as
// soon as each region that serves the policy has observed the candidate for the time that its
// publication states, provided that the candidate has never exceeded the limit on its denials.
//
// A region serves the policy if one of its nodes has enforced it since the candidate was published.
// The time between two reports of its nodes with the candidate counts as observed if it is at most
// 30 seconds. A candidate is not promoted if an operator has taken another step, if it has decided
// fewer than [RequestsMin] requests, or if the policy has a later revision.
type Promotion struct {
	ObservedSeconds int64 `json:"observed_seconds" doc:"how long the candidate was observed in the region that has observed it for the shortest time"`
	// At is nil if there is an obstacle.
	At       *time.Time `json:"at,omitempty" doc:"when the candidate is published to all nodes, if nodes go on reporting and its denials stay within the bound"`
	Obstacle string     `json:"obstacle,omitempty" doc:"why the time of the publication is not known"`

	due      bool
	requests uint64
	share    Parts // the greatest share of denials in any region
}

// Observation is what the nodes of a region have reported about a candidate until now.
type Observation struct {
	Region, Policy string
	Generation     int64
	Serves         bool // whether a node enforces the policy, with the candidate or without
	// ReportedMicros is the instant of the last report of a node with the candidate, by the clock
	// of the region's Redis; 0 if no node with the candidate reports now.
	ReportedMicros   int64
	Denied, Admitted uint64
	Exceeded         bool   // whether the denials exceed the bound
	Totals           []byte // the totals of the nodes, for another process that continues the observation; nil keeps what is stored
}

// Observation.share returns the fraction of requests that were denied.
func (o *Observation) share() Parts { return ShareOf(o.Denied, o.Admitted) }

// ShareOf returns the fraction of requests that were denied.
func ShareOf(denied, admitted uint64) Parts {
	if denied+admitted == 0 {
		return 0
	}
	return Percent(100 * float64(denied) / float64(denied+admitted))
}

// checkPromotion returns an [Invalid] if PromoteAfterSeconds is not valid, or does not fit the
// other fields.
func (p *Publish) checkPromotion() error {
	const place = "promote_after_seconds"
	switch {
	case p.PromoteAfterSeconds == 0:
		return nil
	case p.Step != StepShare:
		return &Invalid{Place: place, Value: p.PromoteAfterSeconds, Text: "only a candidate of the step share is published to all by itself: leave it out"}
	case p.PromoteAfterSeconds < promoteMin || p.PromoteAfterSeconds > promoteMax:
		return &Invalid{Place: place, Value: p.PromoteAfterSeconds, Text: fmt.Sprintf("a candidate cannot be observed for %d seconds: write a number from %d, "+
			"which is a minute, to %d, which is 31 days", p.PromoteAfterSeconds, promoteMin, promoteMax)}
	case p.DenialsMax == 0:
		return &Invalid{Place: place, Value: p.PromoteAfterSeconds, Text: "a candidate without a bound of denials is not published to all by itself: " +
			"write denials_max_percent 5, or leave promote_after_seconds out"}
	}
	return nil
}

// setPromotion records the promotion of a publication. It forgets what nodes reported about a
// former candidate.
func (w *writeTx) setPromotion(ctx context.Context, p *Policy) error {
	if _, err := w.tx.Exec(ctx, "DELETE FROM candidate_observations WHERE policy = $1", p.Policy); err != nil {
		return err
	}
	if p.PromoteAfterSeconds == 0 {
		_, err := w.tx.Exec(ctx, "DELETE FROM promotions WHERE policy = $1", p.Policy)
		return err
	}
	p.promoteHead = p.Head
	_, err := w.tx.Exec(ctx, "INSERT INTO promotions (policy, generation, after_seconds, head) VALUES ($1, $2, $3, $4) ON CONFLICT (policy) DO UPDATE "+
		"SET generation = excluded.generation, after_seconds = excluded.after_seconds, head = excluded.head", p.Policy, p.Generation, p.PromoteAfterSeconds, p.promoteHead)
	return err
}

// Observe records what the nodes of a region have reported. Several processes may do so at the same
// time: the time between two reports counts only once.
func (l *Ledger) Observe(ctx context.Context, o *Observation) error {
	_, err := l.Pool.Exec(ctx, "INSERT INTO candidate_observations AS o (policy, generation, region, serves, reporting, reported_micros, observed_micros, "+
		"denied, admitted, exceeded, looked_at, totals) VALUES ($1, $2, $3, $4, $5::bigint > 0, $5, 0, $6, $7, $8, now(), $9) "+
		"ON CONFLICT (policy, generation, region) DO UPDATE SET serves = o.serves OR excluded.serves, reporting = excluded.reporting, "+
		"observed_micros = o.observed_micros + CASE WHEN excluded.reported_micros - o.reported_micros BETWEEN 0 AND $10 "+
		"THEN excluded.reported_micros - o.reported_micros ELSE 0 END, "+
		// A report a little older than the stored one comes from a process that read Redis earlier.
		// A report that is much older comes from a Redis whose clock was set back.
		"reported_micros = CASE WHEN excluded.reported_micros = 0 OR o.reported_micros - excluded.reported_micros BETWEEN 0 AND $10 "+
		"THEN o.reported_micros ELSE excluded.reported_micros END, "+
		"denied = excluded.denied, admitted = excluded.admitted, exceeded = o.exceeded OR excluded.exceeded, looked_at = excluded.looked_at, "+
		"totals = coalesce(excluded.totals, o.totals)",
		o.Policy, o.Generation, o.Region, o.Serves, o.ReportedMicros, int64(min(o.Denied, math.MaxInt64)), int64(min(o.Admitted, math.MaxInt64)),
		o.Exceeded, o.Totals, reportGap.Microseconds())
	return err
}

// ObservedTotals returns the totals of nodes that were recorded last, or nil.
func (l *Ledger) ObservedTotals(ctx context.Context, region, policy string, generation int64) (totals []byte, err error) {
	err = l.Pool.QueryRow(ctx, "SELECT totals FROM candidate_observations WHERE policy = $1 AND generation = $2 AND region = $3", policy, generation, region).Scan(&totals)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return totals, err
}

// observed is what is recorded about a candidate in a region.
type observed struct {
	Observation
	reporting bool
	micros    int64
	looked    bool // whether a process has looked at the region lately
}

// observedOf returns what is recorded about a candidate, for each region that the control plane
// publishes to.
func observedOf(ctx context.Context, q querier, p *Policy) ([]observed, error) {
	rows, err := q.Query(ctx, "SELECT region, coalesce(o.serves, false), coalesce(o.reporting, false), coalesce(o.observed_micros, 0), "+
		"coalesce(o.denied, 0), coalesce(o.admitted, 0), coalesce(o.exceeded, false), coalesce(o.looked_at > now() - $3::interval, false) "+
		"FROM region_publications FULL JOIN (SELECT * FROM candidate_observations WHERE policy = $1 AND generation = $2) o USING (region) "+
		// The region '' has a row in every database.
		"WHERE o.policy IS NOT NULL OR region <> '' OR NOT EXISTS (SELECT FROM region_publications WHERE region <> '') ORDER BY region",
		p.Policy, p.Generation, lookedWithin)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o observed, err error) {
		return o, row.Scan(&o.Region, &o.Serves, &o.reporting, &o.micros, &o.Denied, &o.Admitted, &o.Exceeded, &o.looked)
	})
}

// Promotion returns the promotion of the candidate of a policy, or nil if the candidate is not
// published to all nodes automatically.
func (l *Ledger) Promotion(ctx context.Context, p *Policy) (*Promotion, error) {
	return promotionOf(ctx, l.Pool, p, l.Instant())
}

func promotionOf(ctx context.Context, q querier, p *Policy, now time.Time) (*Promotion, error) {
	if p.PromoteAfterSeconds == 0 {
		return nil, nil
	}
	regions, err := observedOf(ctx, q, p)
	if err != nil {
		return nil, err
	}
	return p.promotion(regions, now), nil
}

// Policy.promotion returns the promotion of a candidate about which regions have reported.
func (p *Policy) promotion(regions []observed, now time.Time) *Promotion {
	m, after := new(Promotion), p.PromoteAfterSeconds*1e6
	least, serving := int64(-1), 0
	for i := range regions {
		r := &regions[i]
		if m.Obstacle == "" {
			m.Obstacle = p.obstacle(r, after)
		}
		if !r.Serves {
			continue
		}
		serving++
		if least < 0 || r.micros < least {
			least = r.micros
		}
		m.requests += r.Denied + r.Admitted
		m.share = max(m.share, r.share())
	}
	least = max(least, 0)
	m.ObservedSeconds = least / 1e6
	switch {
	case p.Head != p.promoteHead:
		m.Obstacle = fmt.Sprintf("revision %d was written since: publish a revision by hand", p.Head)
	case m.Obstacle != "":
	case serving == 0:
		m.Obstacle = "no node enforces the policy"
	case least >= after && m.requests < RequestsMin:
		m.Obstacle = fmt.Sprintf("it has decided %d requests, and %d is the least", m.requests, RequestsMin)
	case least >= after && m.share > p.DenialsMax:
		m.Obstacle = fmt.Sprintf("%v of few requests were denied", m.share)
	default:
		m.due = least >= after
		at := now.Add(time.Duration(max(after-least, 0)) * time.Microsecond).UTC().Truncate(time.Second)
		m.At = &at
	}
	return m
}

// Policy.obstacle returns why a region keeps a candidate from being promoted, or "".
func (p *Policy) obstacle(r *observed, after int64) string {
	of := ""
	if r.Region != "" {
		of = fmt.Sprintf(" of the region %q", r.Region)
	}
	switch {
	case !r.looked:
		return fmt.Sprintf("no process of the control plane reads the reports%s", of)
	case r.Exceeded:
		return fmt.Sprintf("the nodes%s have exceeded the bound of denials", of)
	case r.Serves && !r.reporting && r.micros < after:
		return fmt.Sprintf("no node%s that has the candidate reports", of)
	}
	return ""
}

// Promote publishes the candidate of a policy to all nodes if its promotion is due. Promote returns
// the policy after that, or nil if it changed nothing. Of several processes, only one publishes the
// candidate.
func (l *Ledger) Promote(ctx context.Context, p *Policy, encode func(*Publication, *Revision, *Revision) error) (*Policy, error) {
	m, err := l.Promotion(ctx, p)
	if err != nil || m == nil || !m.due {
		return nil, err
	}
	reason := fmt.Sprintf("observed for %v with %d requests, of which each region denied at most %v, and %v is the bound",
		time.Duration(m.ObservedSeconds)*time.Second, m.requests, m.share, p.DenialsMax)
	after, err := l.publishIf(ctx, Actor{Name: "control", Origin: "promotion"}, p.Policy, Publish{Step: StepAll, Revision: p.Candidate, Generation: p.Generation},
		reason, encode, func(ctx context.Context, w *writeTx, present *Policy) error {
			now, err := promotionOf(ctx, w.tx, present, w.now)
			if err == nil && (now == nil || !now.due) {
				err = ErrChanged
			}
			return err
		})
	if errors.Is(err, ErrChanged) {
		return nil, nil // another process has promoted it, or an operator has taken another step
	}
	return after, err
}
