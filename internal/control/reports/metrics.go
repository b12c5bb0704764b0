// SPDX-License-Identifier: Apache-2.0

package reports

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// EndpointKey identifies the decisions of a path pattern. Results are in the order of their keys.
type EndpointKey struct {
	At       time.Time `json:"at"`
	Policy   string    `json:"policy"`
	Rule     string    `json:"rule"`
	Endpoint string    `json:"endpoint" doc:"a path pattern of the rule; empty for a rule without a path"`
	Region   string    `json:"region"`
}

// Endpoint holds the decisions of a path pattern in a minute, an hour or a day, and how long they
// took.
type Endpoint struct {
	EndpointKey
	Admitted int64   `json:"admitted" doc:"how many requests were admitted"`
	Denied   int64   `json:"denied" doc:"how many requests were denied"`
	P50      float64 `json:"p50_us" doc:"half of the decisions took at most this number of microseconds"`
	P95      float64 `json:"p95_us"`
	P99      float64 `json:"p99_us"`
}

// EndpointQuery selects decisions. Empty texts select all.
type EndpointQuery struct {
	Granularity  string // minute, hour or day
	From, To     time.Time
	Policy, Rule string
	Region       string
	After        *EndpointKey // nil for the first page
	Limit        int
}

// Endpoints returns decisions by path pattern, in the order of their keys. Percentiles are computed
// from the sums of the histograms, evenly within a bucket.
func (r *Reports) Endpoints(ctx context.Context, q EndpointQuery) ([]Endpoint, error) {
	after := EndpointKey{At: time.Unix(0, 0)}
	if q.After != nil {
		after = *q.After
	}
	const percentile = "min(CASE WHEN n.upto >= n.total * %s AND n.upto - n.here < n.total * %s THEN b.from_us + (b.to_us - b.from_us) * (n.total * %s - n.upto + n.here) / n.here END)"
	rows, err := r.Pool.Query(ctx, "WITH keys AS (SELECT DISTINCT at, policy, rule, endpoint, region FROM rate_limit_latencies "+
		"WHERE granularity = $1 AND at >= $2 AND at < $3 AND ($4 = '' OR policy = $4) AND ($5 = '' OR rule = $5) AND ($12 = '' OR region = $12) "+
		"AND (at, policy, rule, endpoint, region) > ($6, $7, $8, $9, $10) ORDER BY at, policy, rule, endpoint, region LIMIT $11), "+
		"n AS (SELECT l.*, l.admitted + l.denied AS here, sum(l.admitted + l.denied) OVER (PARTITION BY l.at, l.policy, l.rule, l.endpoint, l.region) AS total, "+
		"sum(l.admitted + l.denied) OVER (PARTITION BY l.at, l.policy, l.rule, l.endpoint, l.region ORDER BY l.bucket) AS upto "+
		"FROM keys k JOIN rate_limit_latencies l USING (at, policy, rule, endpoint, region) WHERE l.granularity = $1 AND l.at >= $2 AND l.at < $3 AND l.admitted + l.denied > 0) "+
		"SELECT n.at, n.policy, n.rule, n.endpoint, n.region, sum(n.admitted)::bigint, sum(n.denied)::bigint, "+
		at(percentile, "0.5")+", "+at(percentile, "0.95")+", "+at(percentile, "0.99")+
		" FROM n JOIN latency_bounds b USING (bucket) GROUP BY n.at, n.policy, n.rule, n.endpoint, n.region ORDER BY n.at, n.policy, n.rule, n.endpoint, n.region",
		q.Granularity, q.From, q.To, q.Policy, q.Rule, after.At, after.Policy, after.Rule, after.Endpoint, after.Region, q.Limit, q.Region)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Endpoint, err error) {
		err = row.Scan(&e.At, &e.Policy, &e.Rule, &e.Endpoint, &e.Region, &e.Admitted, &e.Denied, &e.P50, &e.P95, &e.P99)
		e.At = e.At.UTC()
		return e, err
	})
}

// at completes the SQL expression of a percentile: it replaces each %s by the share.
func at(expression, share string) string {
	return "(" + strings.ReplaceAll(expression, "%s", share) + ")::float8"
}

// ActiveKey identifies what a client used in a minute. Results are in the order of their keys.
type ActiveKey struct {
	At     time.Time `json:"at"`
	Client string    `json:"client" doc:"KIND:ID; empty for all but the 1,000 most active clients of the minute"`
	Policy string    `json:"policy"`
	Rule   string    `json:"rule"`
}

// Active is what a client used in a minute.
type Active struct {
	ActiveKey
	Admitted int64 `json:"admitted" doc:"how many requests were admitted"`
	Denied   int64 `json:"denied" doc:"how many requests were denied"`
	Units    int64 `json:"units" doc:"the units of the admitted requests"`
}

// ActiveQuery selects minutes of clients. An empty client selects all.
type ActiveQuery struct {
	From, To time.Time
	Client   string
	After    *ActiveKey // nil for the first page
	Limit    int
}

// Active returns what clients used by minute, in the order of the keys.
func (r *Reports) Active(ctx context.Context, q ActiveQuery) ([]Active, error) {
	after := ActiveKey{At: time.Unix(0, 0)}
	if q.After != nil {
		after = *q.After
	}
	query, args := "", []any{q.From, q.To, after.At, after.Client, after.Policy, after.Rule, q.Limit}
	if q.Client != "" {
		query, args = " AND client = $8", append(args, q.Client)
	}
	rows, err := r.Pool.Query(ctx, "SELECT at, client, policy, rule, admitted, denied, units FROM client_minutes WHERE at >= $1 AND at < $2 "+
		"AND (at, client, policy, rule) > ($3, $4, $5, $6)"+query+" ORDER BY at, client, policy, rule LIMIT $7", args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Active, err error) {
		err = row.Scan(&a.At, &a.Client, &a.Policy, &a.Rule, &a.Admitted, &a.Denied, &a.Units)
		a.At = a.At.UTC()
		return a, err
	})
}
