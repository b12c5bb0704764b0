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

// latencyBuckets is how many buckets a histogram has. Counts of buckets with other numbers are left
// out.
const latencyBuckets = 104

// latencyName identifies a bucket of a histogram.
type latencyName struct {
	granularity            string
	at                     time.Time
	policy, rule, endpoint string
	region                 string
	bucket                 int64
}

func compareLatencies(a, b latencyName) int {
	return cmp.Or(cmp.Compare(a.granularity, b.granularity), a.at.Compare(b.at), cmp.Compare(a.policy, b.policy), cmp.Compare(a.rule, b.rule),
		cmp.Compare(a.endpoint, b.endpoint), cmp.Compare(a.region, b.region), cmp.Compare(a.bucket, b.bucket))
}

// levels returns the beginnings of the minute, the hour and the day that contain an instant.
func levels(at time.Time) map[string]time.Time {
	return map[string]time.Time{"minute": at.Truncate(time.Minute), "hour": at.Truncate(time.Hour), "day": at.Truncate(24 * time.Hour)}
}

// addLatencies adds the histogram of a line to the sums of its minute, hour and day.
func addLatencies(to map[latencyName]sum, l *feed.Line) {
	for granularity, at := range levels(l.Time) {
		for _, counts := range l.Latency {
			bucket, admitted, denied := counts[0], counts[1], counts[2]
			if bucket < 0 || bucket >= latencyBuckets || admitted < 0 || denied < 0 || admitted > countMax || denied > countMax {
				continue
			}
			n := latencyName{granularity, at, l.Policy, l.Rule, l.Endpoint, l.Region, bucket}
			was := to[n]
			to[n] = sum{admitted: min(was.admitted+admitted, countMax), denied: min(was.denied+denied, countMax)}
		}
	}
}

var (
	addLatencyRows = "INSERT INTO rate_limit_latencies AS t (granularity, at, policy, rule, endpoint, region, bucket, admitted, denied) " +
		"SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[], $8::bigint[], $9::bigint[]) " +
		"ON CONFLICT (granularity, at, policy, rule, endpoint, region, bucket) DO UPDATE SET " + plus("admitted") + ", " + plus("denied")
	// The row of a changed minute is locked before the minute's other rows, as in Fold.
	addMinutesChanged = "INSERT INTO minutes_changed AS t (at) SELECT DISTINCT at FROM unnest($1::timestamptz[]) AS n (at) ORDER BY at " +
		"ON CONFLICT (at) DO UPDATE SET at = excluded.at"
	addClientMinutes = "INSERT INTO client_minutes AS t (at, client, policy, rule, admitted, denied, units) " +
		"SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[]) " +
		"ON CONFLICT (at, client, policy, rule) DO UPDATE " +
		"SET " + plus("admitted") + ", " + plus("denied") + ", " + plus("units")
)

// queueLatencies adds histograms to a batch of statements.
func queueLatencies(batch *pgx.Batch, of map[latencyName]sum) {
	if len(of) == 0 {
		return
	}
	var granularities, policies, rules, endpoints, regions []string
	var ats []time.Time
	var buckets []int16
	var admitted, denied []int64
	for _, n := range slices.SortedFunc(maps.Keys(of), compareLatencies) {
		granularities, ats = append(granularities, n.granularity), append(ats, n.at)
		policies, rules, endpoints, regions = append(policies, n.policy), append(rules, n.rule), append(endpoints, n.endpoint), append(regions, n.region)
		buckets, admitted, denied = append(buckets, int16(n.bucket)), append(admitted, of[n].admitted), append(denied, of[n].denied)
	}
	batch.Queue(addLatencyRows, granularities, ats, policies, rules, endpoints, regions, buckets, admitted, denied)
}

// queueMinutes adds the statements that write what clients used in each minute to a batch of
// statements.
func queueMinutes(batch *pgx.Batch, of map[name]sum) {
	c := columnsOf(of)
	batch.Queue(addMinutesChanged, c.ats)
	batch.Queue(addClientMinutes, c.ats, c.clients, c.policies, c.rules, c.admitted, c.denied, c.units)
}

// ClientsOfAMinute is how many clients of a minute keep rows under their own names.
const ClientsOfAMinute = 1000

// These are the bounds of Fold.
const (
	// foldAfter is how long after its beginning a minute is folded. Most nodes have reported it by
	// then.
	foldAfter = 3 * time.Minute
	// minutesMax is how many minutes one call of Fold looks at.
	minutesMax = 120
)

// foldMinute adds the usage of a minute's least active clients to the rows without a name.
var foldMinute = "WITH others AS (SELECT client FROM client_minutes WHERE at = $1 AND client <> '' GROUP BY client " +
	"ORDER BY sum(admitted + denied) DESC, client OFFSET $2), " +
	"gone AS (DELETE FROM client_minutes m USING others o WHERE m.at = $1 AND m.client = o.client RETURNING m.policy, m.rule, m.admitted, m.denied, m.units) " +
	"INSERT INTO client_minutes AS t (at, client, policy, rule, admitted, denied, units) " +
	"SELECT $1, '', policy, rule, " + total("admitted") + ", " + total("denied") + ", " + total("units") + " FROM gone GROUP BY policy, rule ORDER BY policy, rule " +
	"ON CONFLICT (at, client, policy, rule) DO UPDATE " +
	"SET " + plus("admitted") + ", " + plus("denied") + ", " + plus("units")

// Fold adds up the usage of all but the [ClientsOfAMinute] most active clients of each minute that
// has changed and is over. Usage that comes later changes the minute again, and a later call folds
// it once more. Fold returns the number of minutes that it has folded.
func (i *Ingester) Fold(ctx context.Context) (folded int, err error) {
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	rows, err := i.Pool.Query(ctx, "SELECT at FROM minutes_changed WHERE at < $1 ORDER BY at LIMIT $2", now().Add(-foldAfter), minutesMax)
	if err != nil {
		return 0, err
	}
	minutes, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return 0, err
	}
	for _, at := range minutes {
		err := pgx.BeginFunc(ctx, i.Pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, "DELETE FROM minutes_changed WHERE at = $1", at)
			if err != nil || tag.RowsAffected() == 0 { // another process was first
				return err
			}
			folded++
			_, err = tx.Exec(ctx, foldMinute, at, ClientsOfAMinute)
			return err
		})
		if err != nil {
			return folded, err
		}
	}
	return folded, nil
}

// foldEvery is the pause between two looks for minutes to fold.
const foldEvery = 20 * time.Second

// Run folds minutes until the context is done. Run passes an error to failed(...), and tries the
// minutes again. Several processes may call Run over one database.
func (i *Ingester) Run(ctx context.Context, failed func(error)) {
	for ctx.Err() == nil {
		n, err := i.Fold(ctx)
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		if n == minutesMax && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(foldEvery):
		}
	}
}
