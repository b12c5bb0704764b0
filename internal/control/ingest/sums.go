// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/feed"
)

// name identifies a sum. Parts that a table does not have are "".
type name struct {
	granularity string
	at          time.Time
	client      string
	policy      string
	rule        string
	tier        string
}

// compare orders names. Transactions that write their rows in the same order cannot deadlock.
func compare(a, b name) int {
	return cmp.Or(cmp.Compare(a.granularity, b.granularity), a.at.Compare(b.at), cmp.Compare(a.client, b.client), cmp.Compare(a.policy, b.policy),
		cmp.Compare(a.rule, b.rule), cmp.Compare(a.tier, b.tier))
}

// sum holds the requests and units of clients.
type sum struct{ admitted, denied, units int64 }

// sums are the sums of a batch's usage, by the tables that have them.
type sums struct {
	usage, denials, metrics, minutes map[name]sum
	latencies                        map[latencyName]sum
}

// sumsOf adds up the usage of a batch.
func sumsOf(lines []feed.Line) *sums {
	s := &sums{map[name]sum{}, map[name]sum{}, map[name]sum{}, map[name]sum{}, map[latencyName]sum{}}
	add := func(to map[name]sum, n name, l *feed.Line) {
		was := to[n]
		to[n] = sum{was.admitted + l.Admitted, was.denied + l.Denied, was.units + l.Units}
	}
	for i := range lines {
		l := &lines[i]
		if l.Kind != feed.KindUsage {
			continue
		}
		if l.Latency != nil {
			addLatencies(s.latencies, l)
			continue
		}
		client, policy, rule, tier := storable(l.Client), storable(l.Policy), storable(l.Rule), storable(l.Tier)
		day := l.Time.Truncate(24 * time.Hour)
		add(s.usage, name{at: day, client: client, policy: policy, rule: rule, tier: tier}, l)
		if l.Denied > 0 {
			add(s.denials, name{at: l.Time.Truncate(time.Hour), client: client, policy: policy, rule: rule}, l)
		}
		add(s.minutes, name{at: l.Time.Truncate(time.Minute), client: client, policy: policy, rule: rule}, l)
		for granularity, at := range levels(l.Time) {
			add(s.metrics, name{granularity: granularity, at: at, policy: policy, rule: rule, tier: tier}, l)
		}
	}
	return s
}

// columns are names and sums as arrays, in the order of the names.
type columns struct {
	granularities, clients, policies, rules, tiers []string
	ats                                            []time.Time
	admitted, denied, units                        []int64
}

func columnsOf(of map[name]sum) *columns {
	c := new(columns)
	for _, n := range slices.SortedFunc(maps.Keys(of), compare) {
		c.granularities, c.ats, c.clients = append(c.granularities, n.granularity), append(c.ats, n.at), append(c.clients, n.client)
		c.policies, c.rules, c.tiers = append(c.policies, n.policy), append(c.rules, n.rule), append(c.tiers, n.tier)
		s := of[n]
		c.admitted, c.denied, c.units = append(c.admitted, s.admitted), append(c.denied, s.denied), append(c.units, s.units)
	}
	return c
}

const (
	addUsage = "INSERT INTO client_usage AS t (day, client, policy, rule, tier, admitted, denied, units) " +
		"SELECT (at AT TIME ZONE 'UTC')::date, client, policy, rule, tier, admitted, denied, units FROM " +
		"unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) " +
		"AS n (at, client, policy, rule, tier, admitted, denied, units) ON CONFLICT (client, policy, rule, tier, day) DO UPDATE " +
		"SET admitted = t.admitted + excluded.admitted, denied = t.denied + excluded.denied, units = t.units + excluded.units"
	addDenials = "INSERT INTO client_denials AS t (at, policy, rule, client, denied) " +
		"SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::bigint[]) " +
		"ON CONFLICT (at, policy, rule, client) DO UPDATE SET denied = t.denied + excluded.denied"
	addMetrics = "INSERT INTO rate_limit_metrics AS t (granularity, at, policy, rule, tier, admitted, denied, units) " +
		"SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) " +
		"ON CONFLICT (granularity, at, policy, rule, tier) DO UPDATE " +
		"SET admitted = t.admitted + excluded.admitted, denied = t.denied + excluded.denied, units = t.units + excluded.units"
)

// write adds the sums to the tables.
func (s *sums) write(ctx context.Context, tx pgx.Tx) error {
	batch := new(pgx.Batch)
	queueLatencies(batch, s.latencies)
	if len(s.usage) > 0 {
		s.queueUsage(batch)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// queueUsage adds the sums of usage to a batch of statements.
func (s *sums) queueUsage(batch *pgx.Batch) {
	queueMinutes(batch, s.minutes)
	c := columnsOf(s.usage)
	batch.Queue(addUsage, c.ats, c.clients, c.policies, c.rules, c.tiers, c.admitted, c.denied, c.units)
	if len(s.denials) > 0 {
		c = columnsOf(s.denials)
		batch.Queue(addDenials, c.ats, c.policies, c.rules, c.clients, c.denied)
	}
	c = columnsOf(s.metrics)
	batch.Queue(addMetrics, c.granularities, c.ats, c.policies, c.rules, c.tiers, c.admitted, c.denied, c.units)
}
