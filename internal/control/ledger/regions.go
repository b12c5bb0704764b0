// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"
)

// publisherLock is the key of the advisory lock of the process that publishes records, in a control
// plane without regions.
const publisherLock = 0x70656e73_0002

// PublisherLock returns the key of the advisory lock that a process holds while it publishes
// records to a region. The region "" stands for a control plane without regions.
func PublisherLock(region string) int64 {
	if region == "" {
		return publisherLock
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte("penstock publisher " + region))
	return int64(hash.Sum64()) //nolint:gosec // all values are keys
}

// Region says what the Redis of a region has.
type Region struct {
	Region string `json:"region" doc:"empty if the control plane has no regions"`
	// Published says that a process publishes to the region.
	Published bool      `json:"published" doc:"whether a process of the control plane publishes to this region"`
	Complete  bool      `json:"complete" doc:"whether this Redis ever had all records"`
	Change    int64     `json:"change" doc:"the latest change that this Redis has"`
	Behind    int64     `json:"behind" doc:"changes that this Redis does not have yet"`
	Trouble   string    `json:"trouble,omitempty" doc:"why nothing can be published now"`
	Since     time.Time `json:"since" doc:"when the trouble began or ended"`
	Policies  int64     `json:"policies" doc:"policies whose publication this Redis has"`
	Missing   []string  `json:"missing_policies" doc:"policies whose latest publication this Redis does not have yet, at most 100"`
}

const (
	// regionsMax bounds the regions in an answer, and is far more than a policy has.
	regionsMax = 256
	// missingMax bounds the policies that an answer names because a region lacks them.
	missingMax = 100
)

// Regions returns what the Redis of each region has. The result includes a region that no process
// publishes to any more, because the region's nodes still enforce what its Redis has.
func (l *Ledger) Regions(ctx context.Context) ([]Region, error) {
	rows, err := l.Pool.Query(ctx, "SELECT r.region, r.generation <> '', r.change, greatest(c.change - r.change, 0), r.trouble, r.since, "+
		"(SELECT count(*) FROM policies p JOIN region_policies h USING (policy) WHERE h.region = r.region AND p.generation > 0 AND h.generation >= p.generation), "+
		"ARRAY(SELECT p.policy FROM policies p LEFT JOIN region_policies h ON h.region = r.region AND h.policy = p.policy "+
		"WHERE p.generation > coalesce(h.generation, 0) ORDER BY p.policy LIMIT $2) "+
		"FROM region_publications r, chain c ORDER BY r.region LIMIT $1", regionsMax, missingMax)
	if err != nil {
		return nil, err
	}
	regions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Region, err error) {
		return r, row.Scan(&r.Region, &r.Complete, &r.Change, &r.Behind, &r.Trouble, &r.Since, &r.Policies, &r.Missing)
	})
	if err != nil {
		return nil, err
	}
	held, err := l.heldLocks(ctx)
	if err != nil {
		return nil, err
	}
	shown := regions[:0]
	for _, r := range regions {
		r.Published = held[PublisherLock(r.Region)]
		// Every database has the row of a control plane without regions.
		if r.Region != "" || r.Published || len(regions) == 1 {
			shown = append(shown, r)
		}
	}
	return shown, nil
}

// heldLocks returns the keys of the advisory locks that processes hold in this database.
func (l *Ledger) heldLocks(ctx context.Context) (map[int64]bool, error) {
	rows, err := l.Pool.Query(ctx, "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "+
		"AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	if err != nil {
		return nil, err
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	held := make(map[int64]bool, len(keys))
	for _, key := range keys {
		held[key] = true
	}
	return held, err
}

// RegionHas records that the Redis of a region has a publication of a policy.
func (l *Ledger) RegionHas(ctx context.Context, region, policy string, generation int64) error {
	_, err := l.Pool.Exec(ctx, "INSERT INTO region_policies (region, policy, generation) VALUES ($1, $2, $3) "+
		"ON CONFLICT (region, policy) DO UPDATE SET generation = excluded.generation WHERE region_policies.generation < excluded.generation", region, policy, generation)
	return err
}
