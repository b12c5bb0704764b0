// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/feed"
)

// name identifies a sum. A field is "" if the table of the sum has no such column.
type name struct {
	granularity string
	at          time.Time
	client      string
	policy      string
	rule        string
	tier        string
	region      string
}

// compare orders names. Transactions that write their rows in the same order cannot deadlock.
func compare(a, b name) int {
	return cmp.Or(cmp.Compare(a.granularity, b.granularity), a.at.Compare(b.at), cmp.Compare(a.client, b.client), cmp.Compare(a.policy, b.policy),
		cmp.Compare(a.rule, b.rule), cmp.Compare(a.tier, b.tier), cmp.Compare(a.region, b.region))
}

// sum holds the requests and units of clients.
type sum struct{ admitted, denied, units int64 }

// sumMax bounds each number of a row, so that neither a row nor a sum of a hundred rows overflows.
// Otherwise, no further batch with the row could be written.
const sumMax = 1 << 56

func bounded(n int64) int64 { return max(-sumMax, min(sumMax, n)) }

// sums are the sums of a batch's usage, one map for each table.
type sums struct {
	usage, regions, denials, metrics, minutes map[name]sum
	latencies                                 map[latencyName]sum
	keys                                      map[string]time.Time // the last use, by the SHA-256 in hexadecimal
}

// sumsOf adds up the usage of a batch. The usage of all clients in unnamed is added up in rows
// without a client.
func sumsOf(lines []feed.Line, unnamed map[string]bool) *sums {
	s := &sums{map[name]sum{}, map[name]sum{}, map[name]sum{}, map[name]sum{}, map[name]sum{}, map[latencyName]sum{}, map[string]time.Time{}}
	add := func(to map[name]sum, n name, l *feed.Line) {
		was := to[n]
		to[n] = sum{was.admitted + l.Admitted, was.denied + l.Denied, was.units + l.Units}
	}
	for i := range lines {
		l := &lines[i]
		if l.Kind != feed.KindUsage {
			continue
		}
		if l.Keys != nil {
			addKeys(s.keys, l)
			continue
		}
		if l.Latency != nil {
			addLatencies(s.latencies, l)
			continue
		}
		client, policy, rule, tier := l.Client, l.Policy, l.Rule, l.Tier
		if unnamed[client] {
			client = ""
		}
		day := l.Time.Truncate(24 * time.Hour)
		add(s.usage, name{at: day, client: client, policy: policy, rule: rule, tier: tier}, l)
		if l.Region != "" {
			add(s.regions, name{at: day, client: client, policy: policy, rule: rule, tier: tier, region: l.Region}, l)
		}
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

// columns holds names and sums as one array for each column of a table, in the order of the names.
type columns struct {
	granularities, clients, policies, rules, tiers, regions []string
	ats                                                     []time.Time
	admitted, denied, units                                 []int64
}

func columnsOf(of map[name]sum) *columns {
	c := new(columns)
	for _, n := range slices.SortedFunc(maps.Keys(of), compare) {
		c.granularities, c.ats, c.clients = append(c.granularities, n.granularity), append(c.ats, n.at), append(c.clients, n.client)
		c.policies, c.rules, c.tiers, c.regions = append(c.policies, n.policy), append(c.rules, n.rule), append(c.tiers, n.tier), append(c.regions, n.region)
		s := of[n]
		c.admitted, c.denied, c.units = append(c.admitted, bounded(s.admitted)), append(c.denied, bounded(s.denied)), append(c.units, bounded(s.units))
	}
	return c
}

// plus returns the SQL that adds to a column of a row, within the bounds of a sum.
func plus(column string) string {
	return fmt.Sprintf("%s = greatest(-%d, least(%[2]d, t.%[1]s + excluded.%[1]s))", column, sumMax)
}

// total returns the SQL that adds up a column of rows, within the bounds of a sum.
func total(column string) string {
	return fmt.Sprintf("greatest(-%d, least(%[1]d, sum(%[2]s)))", sumMax, column)
}

var (
	addUsage = "INSERT INTO client_usage AS t (day, client, policy, rule, tier, admitted, denied, units) " +
		"SELECT (at AT TIME ZONE 'UTC')::date, client, policy, rule, tier, admitted, denied, units FROM " +
		"unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) " +
		"AS n (at, client, policy, rule, tier, admitted, denied, units) ON CONFLICT (client, policy, rule, tier, day) DO UPDATE " +
		"SET " + plus("admitted") + ", " + plus("denied") + ", " + plus("units")
	addRegions = "INSERT INTO client_usage_regions AS t (day, client, policy, rule, tier, region, admitted, denied, units) " +
		"SELECT (at AT TIME ZONE 'UTC')::date, client, policy, rule, tier, region, admitted, denied, units FROM " +
		"unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[]) " +
		"AS n (at, client, policy, rule, tier, region, admitted, denied, units) ON CONFLICT (client, policy, rule, tier, region, day) DO UPDATE " +
		"SET " + plus("admitted") + ", " + plus("denied") + ", " + plus("units")
	addDenials = "INSERT INTO client_denials AS t (at, policy, rule, client, denied) " +
		"SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::bigint[]) " +
		"ON CONFLICT (at, policy, rule, client) DO UPDATE SET " + plus("denied")
	addMetrics = "INSERT INTO rate_limit_metrics AS t (granularity, at, policy, rule, tier, admitted, denied, units) " +
		"SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[]) " +
		"ON CONFLICT (granularity, at, policy, rule, tier) DO UPDATE " +
		"SET " + plus("admitted") + ", " + plus("denied") + ", " + plus("units")
)

// sums.write adds the sums to the tables.
func (s *sums) write(ctx context.Context, tx pgx.Tx) error {
	batch := new(pgx.Batch)
	queueLatencies(batch, s.latencies)
	queueKeys(batch, s.keys)
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
	if len(s.regions) > 0 {
		c = columnsOf(s.regions)
		batch.Queue(addRegions, c.ats, c.clients, c.policies, c.rules, c.tiers, c.regions, c.admitted, c.denied, c.units)
	}
	if len(s.denials) > 0 {
		c = columnsOf(s.denials)
		batch.Queue(addDenials, c.ats, c.policies, c.rules, c.clients, c.denied)
	}
	c = columnsOf(s.metrics)
	batch.Queue(addMetrics, c.granularities, c.ats, c.policies, c.rules, c.tiers, c.admitted, c.denied, c.units)
}
