// SPDX-License-Identifier: Apache-2.0

// Package reports reads from the database: usage for billing, the clients that were denied most,
// events, and sums over time.
//
// # Promise
//
// Lists are paged by key. No query reads more than the partitions of its span. Usage and sums are
// exact, because package ingest has added them up. Events are only those that policies report.
//
// # When not to use it
//
// The units that a client can use at this moment are in its counters in Redis: ask a proxy for
// them.
package reports

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Reports reads from the database. A Reports is safe for concurrent use.
type Reports struct{ Pool *pgxpool.Pool }

// RowsMax bounds the rows of a page.
const RowsMax = 1000

// UsageKey identifies a row of usage. Rows are in the order of their keys.
type UsageKey struct {
	Client string `json:"client" doc:"KIND:ID; empty for clients beyond the bound of a node"`
	Policy string `json:"policy"`
	Rule   string `json:"rule" doc:"empty for the policy itself: blocks, credentials and penalties"`
	Tier   string `json:"tier"`
	Region string `json:"region,omitempty" doc:"with by=region: the region of the nodes"`
}

// Usage is what a client used in a span of days.
type Usage struct {
	UsageKey
	Admitted int64 `json:"admitted" doc:"how many requests were admitted"`
	Denied   int64 `json:"denied" doc:"how many requests were denied"`
	Units    int64 `json:"units" doc:"the units of the admitted requests"`
}

// UsageQuery selects usage. Empty texts select all.
type UsageQuery struct {
	From, To             time.Time // days; To is not included
	Client, Policy, Rule string
	Region               string    // only the usage that nodes of a region reported
	ByRegion             bool      // a row for each region
	After                *UsageKey // nil for the first page
	Limit                int
}

// Usage returns the usage of a span, in the order of the keys.
func (r *Reports) Usage(ctx context.Context, q UsageQuery) ([]Usage, error) {
	// Only the usage of nodes with a region has rows by region.
	table, region := "client_usage", "''"
	if q.ByRegion || q.Region != "" {
		table, region = "client_usage_regions", "region"
	}
	args := []any{q.From, q.To, q.Limit}
	query := "SELECT client, policy, rule, tier, " + region + ", sum(admitted)::bigint, sum(denied)::bigint, sum(units)::bigint FROM " + table +
		" WHERE day >= $1 AND day < $2 "
	// An absent filter is left out of the query: a plan for all combinations would read the rows of
	// all clients.
	for _, filter := range [...]struct{ column, value string }{{"client", q.Client}, {"policy", q.Policy}, {"rule", q.Rule}, {"region", q.Region}} {
		if filter.value != "" {
			args = append(args, filter.value)
			query += fmt.Sprintf("AND %s = $%d ", filter.column, len(args))
		}
	}
	if q.After != nil {
		n := len(args)
		query += fmt.Sprintf("AND (client, policy, rule, tier, %s) > ($%d, $%d, $%d, $%d, $%d) ", region, n+1, n+2, n+3, n+4, n+5)
		args = append(args, q.After.Client, q.After.Policy, q.After.Rule, q.After.Tier, q.After.Region)
	}
	rows, err := r.Pool.Query(ctx, query+"GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT $3", args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u Usage, err error) {
		err = row.Scan(&u.Client, &u.Policy, &u.Rule, &u.Tier, &u.Region, &u.Admitted, &u.Denied, &u.Units)
		return u, err
	})
}

// Violator is a client that was denied.
type Violator struct {
	Client string `json:"client" doc:"KIND:ID; empty for clients beyond the bound of a node"`
	Denied int64  `json:"denied" doc:"how many requests were denied"`
	Policy string `json:"policy"`
	Rule   string `json:"rule" doc:"the rule that denied most of them"`
}

// TopQuery selects denials. Empty texts select all.
type TopQuery struct {
	From, To     time.Time // hours; To is not included
	Policy, Rule string
	Limit        int
}

// Top returns the clients that were denied most, the one with most denials first.
func (r *Reports) Top(ctx context.Context, q TopQuery) ([]Violator, error) {
	rows, err := r.Pool.Query(ctx, "WITH by_rule AS (SELECT client, policy, rule, sum(denied)::bigint AS denied FROM client_denials "+
		"WHERE at >= $1 AND at < $2 AND ($3 = '' OR policy = $3) AND ($4 = '' OR rule = $4) GROUP BY client, policy, rule) "+
		"SELECT client, sum(denied)::bigint, (array_agg(policy ORDER BY denied DESC, policy, rule))[1], (array_agg(rule ORDER BY denied DESC, policy, rule))[1] "+
		"FROM by_rule GROUP BY client ORDER BY 2 DESC, client LIMIT $5", q.From, q.To, q.Policy, q.Rule, q.Limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v Violator, err error) {
		err = row.Scan(&v.Client, &v.Denied, &v.Policy, &v.Rule)
		return v, err
	})
}

// EventKey is the position of an event. Events are in the order of their keys, the newest first.
type EventKey struct {
	At    time.Time `json:"at"`
	Event int64     `json:"event"`
}

// Event is an event as a node reported it.
type Event struct {
	EventKey
	Kind     string  `json:"kind"`
	Policy   string  `json:"policy,omitempty"`
	Version  string  `json:"version,omitempty"`
	Rule     string  `json:"rule,omitempty"`
	Limit    string  `json:"limit,omitempty"`
	Decision string  `json:"decision,omitempty"`
	Status   int     `json:"status,omitempty"`
	Client   string  `json:"client,omitempty"`
	Tier     string  `json:"tier,omitempty"`
	IP       string  `json:"ip,omitempty"`
	Method   string  `json:"method,omitempty"`
	Path     string  `json:"path,omitempty"`
	State    string  `json:"state,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Node     string  `json:"node,omitempty"`
	Region   string  `json:"region,omitempty" doc:"the region of the node"`
	Seconds  float64 `json:"seconds,omitempty"`
	Share    float32 `json:"share" doc:"the share of the decisions that are reported"`
	Count    int64   `json:"count" doc:"how many decisions the event stands for"`
	// The next two are nil if the node has not reported them.
	RetryAfterMS *int64 `json:"retry_after_ms,omitempty" doc:"of a denial: how many milliseconds the client was to wait, after the first of the decisions"`
	LatencyUS    *int64 `json:"latency_us,omitempty" doc:"how many microseconds the first of the decisions took"`
}

// EventQuery selects events. Empty texts select all.
type EventQuery struct {
	From, To                   time.Time // To is not included
	Client, Rule, Kind, Region string
	Before                     *EventKey // nil for the first page
	Limit                      int
}

// Events returns events, the newest first.
func (r *Reports) Events(ctx context.Context, q EventQuery) ([]Event, error) {
	before := EventKey{At: q.To}
	if q.Before != nil {
		before = *q.Before
	}
	// An absent filter is left out of the query, so that each combination of filters has a plan
	// with a suitable index.
	query, args := "", []any{q.From, q.To, before.At, before.Event, q.Limit}
	for _, filter := range [...]struct{ column, value string }{{"client", q.Client}, {"rule", q.Rule}, {"region", q.Region}} {
		if filter.value != "" {
			args = append(args, filter.value)
			query += fmt.Sprintf(" AND %s = $%d", filter.column, len(args))
		}
	}
	switch q.Kind {
	case "":
	case "admitted", "degraded", "dropped": // PostgreSQL could not use the index of these kinds if the kind were a parameter
		query += " AND kind = '" + q.Kind + "'"
	default:
		args = append(args, q.Kind)
		query += fmt.Sprintf(" AND kind = $%d", len(args))
	}
	rows, err := r.Pool.Query(ctx, "SELECT at, event, kind, policy, version, rule, limited, decision, status, client, tier, coalesce(abbrev(ip), ''), method, path, "+
		"state, reason, node, region, seconds, share, events, retry_after_ms, latency_us FROM rate_limit_events WHERE at >= $1 AND at < $2 AND (at, event) < ($3, $4)"+query+
		" ORDER BY at DESC, event DESC LIMIT $5", args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Event, err error) {
		err = row.Scan(&e.At, &e.Event, &e.Kind, &e.Policy, &e.Version, &e.Rule, &e.Limit, &e.Decision, &e.Status, &e.Client, &e.Tier, &e.IP, &e.Method,
			&e.Path, &e.State, &e.Reason, &e.Node, &e.Region, &e.Seconds, &e.Share, &e.Count, &e.RetryAfterMS, &e.LatencyUS)
		e.At = e.At.UTC()
		return e, err
	})
}

// MetricKey identifies a sum. Sums are in the order of their keys.
type MetricKey struct {
	At     time.Time `json:"at"`
	Policy string    `json:"policy"`
	Rule   string    `json:"rule"`
	Tier   string    `json:"tier"`
}

// Metric is a sum over all clients in a minute, an hour or a day.
type Metric struct {
	MetricKey
	Admitted int64 `json:"admitted" doc:"how many requests were admitted"`
	Denied   int64 `json:"denied" doc:"how many requests were denied"`
	Units    int64 `json:"units" doc:"the units of the admitted requests"`
}

// MetricQuery selects sums.
type MetricQuery struct {
	Granularity string // minute, hour or day
	From, To    time.Time
	After       *MetricKey // nil for the first page
	Limit       int
}

// Metrics returns sums in the order of their keys.
func (r *Reports) Metrics(ctx context.Context, q MetricQuery) ([]Metric, error) {
	after := MetricKey{At: time.Unix(0, 0)}
	if q.After != nil {
		after = *q.After
	}
	rows, err := r.Pool.Query(ctx, "SELECT at, policy, rule, tier, admitted, denied, units FROM rate_limit_metrics "+
		"WHERE granularity = $1 AND at >= $2 AND at < $3 AND (at, policy, rule, tier) > ($4, $5, $6, $7) ORDER BY at, policy, rule, tier LIMIT $8",
		q.Granularity, q.From, q.To, after.At, after.Policy, after.Rule, after.Tier, q.Limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Metric, err error) {
		err = row.Scan(&m.At, &m.Policy, &m.Rule, &m.Tier, &m.Admitted, &m.Denied, &m.Units)
		m.At = m.At.UTC()
		return m, err
	})
}
