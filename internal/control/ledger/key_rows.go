// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/directory"
)

// Key is an API key, without the key itself.
type Key struct {
	Hash      string               `json:"hash" doc:"the SHA-256 of the key, in hexadecimal"`
	State     string               `json:"state" enum:"valid,inactive,lapsed,revoked"`
	Record    *directory.KeyRecord `json:"record"`
	CreatedAt time.Time            `json:"created_at"`
	CreatedBy string               `json:"created_by"`
	Revision  int64                `json:"revision" doc:"the number of the latest change"`
	UpdatedAt time.Time            `json:"updated_at"`
	// Only the methods of [Ledger] fill in LastUsedAt.
	LastUsedAt *time.Time `json:"last_used_at,omitempty" doc:"when a node last noted a request with the key, while it was valid; the last use may be up to ten minutes later; absent if no node has reported a use"`
}

// KeyPlace is the place of a key in the order of names.
type KeyPlace struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
}

// selectKeys is the beginning of a query whose rows scanKey reads.
const selectKeys = `SELECT hash, name, client, coalesce(user_id, ''), coalesce(tenant, ''), coalesce(tier, ''), limits, disabled, not_before, expires_at,
	revoked_at, revoked_by, revoke_reason, created_at, created_by, revision, updated_at FROM api_keys `

func scanKey(row pgx.CollectableRow) (k Key, err error) {
	r := new(directory.KeyRecord)
	var hash, limits []byte
	var disabled bool
	var notBefore, expires, revoked *time.Time
	var by, reason *string
	if err := row.Scan(&hash, &r.Name, &r.Client, &r.User, &r.Tenant, &r.Tier, &limits, &disabled, &notBefore, &expires, &revoked, &by, &reason,
		&k.CreatedAt, &k.CreatedBy, &k.Revision, &k.UpdatedAt); err != nil {
		return k, err
	}
	k.Hash = hex.EncodeToString(hash)
	if limits != nil {
		if json.Unmarshal(limits, &r.Limits) != nil {
			r.Limits = map[string][]string{"": {string(limits)}} // which Check rejects
		}
	}
	if disabled {
		r.State = directory.KeyInactive
	}
	if revoked != nil {
		r.Revoked = &directory.Revocation{At: *revoked, By: *by, Reason: *reason}
	}
	r.NotBefore, r.ExpiresAt = instantOf(notBefore), instantOf(expires)
	normalizeKey(r)
	k.Record, k.CreatedAt, k.UpdatedAt = r, k.CreatedAt.UTC(), k.UpdatedAt.UTC()
	return k, nil
}

// instantOf returns the instant that t points to, or the zero time for nil.
func instantOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// normalizeKey changes the record to the form in which it is read back.
func normalizeKey(r *directory.KeyRecord) {
	r.Version = 0
	r.NotBefore, r.ExpiresAt = instant(r.NotBefore), instant(r.ExpiresAt)
	if r.Revoked != nil {
		revoked := *r.Revoked
		revoked.At = instant(revoked.At)
		r.Revoked = &revoked
	}
	if len(r.Limits) == 0 {
		r.Limits = nil
	}
}

// keysOf returns the keys that a query selects. The query is appended to selectKeys.
func keysOf(ctx context.Context, q querier, query string, args ...any) ([]Key, error) {
	rows, err := q.Query(ctx, selectKeys+query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanKey)
}

// readUses sets the times at which keys were last used.
func readUses(ctx context.Context, q querier, keys []Key) error {
	hashes := make([]string, len(keys))
	for i := range keys {
		hashes[i] = keys[i].Hash
	}
	rows, err := q.Query(ctx, "SELECT encode(hash, 'hex'), last_used_at FROM api_key_uses WHERE hash = ANY ($1)", sumsOf(hashes))
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	var hash string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&hash, &at}, func() error {
		used[hash] = at.UTC()
		return nil
	})
	for i := range keys {
		if at, ok := used[keys[i].Hash]; ok {
			keys[i].LastUsedAt = &at
		}
	}
	return err
}

// KeysOf returns the keys with the given SHA-256, in hexadecimal. The connection may be in a
// transaction.
func KeysOf(ctx context.Context, c *pgx.Conn, hashes []string) (map[string]*Key, error) {
	found, err := keysOf(ctx, c, "WHERE hash = ANY ($1)", sumsOf(hashes))
	if err != nil {
		return nil, err
	}
	keys := make(map[string]*Key, len(found))
	for i := range found {
		keys[found[i].Hash] = &found[i]
	}
	return keys, nil
}

// KeysAfter returns the next n keys in the order of their SHA-256. The hash "" comes before all
// others.
func KeysAfter(ctx context.Context, c *pgx.Conn, hash string, n int) ([]Key, error) {
	return keysOf(ctx, c, "WHERE hash > $1 ORDER BY hash LIMIT $2", sumOf(hash), n)
}

// sumOf returns the bytes of a SHA-256. If the text is not hexadecimal, the result is empty, which
// matches no key.
func sumOf(hash string) []byte {
	sum, err := hex.DecodeString(hash)
	if err != nil {
		return []byte{}
	}
	return sum
}

func sumsOf(hashes []string) [][]byte {
	sums := make([][]byte, len(hashes))
	for i, hash := range hashes {
		sums[i] = sumOf(hash)
	}
	return sums
}

// putKey replaces the row of a key. A nil record removes it.
func (w *writeTx) putKey(ctx context.Context, actor Actor, hash string, r *directory.KeyRecord) error {
	if r == nil {
		_, err := w.tx.Exec(ctx, "DELETE FROM api_keys WHERE hash = $1", sumOf(hash))
		return err
	}
	var limits []byte
	if r.Limits != nil {
		var err error
		if limits, err = json.Marshal(r.Limits); err != nil {
			return err
		}
	}
	var revoked *time.Time
	var by, reason *string
	if r.Revoked != nil {
		revoked, by, reason = &r.Revoked.At, &r.Revoked.By, &r.Revoked.Reason
	}
	_, err := w.tx.Exec(ctx, "INSERT INTO api_keys (hash, name, client, user_id, tenant, tier, limits, disabled, not_before, expires_at, revoked_at, "+
		"revoked_by, revoke_reason, created_at, created_by, revision, updated_at) VALUES ($1, $2, $3, nullif($4, ''), nullif($5, ''), nullif($6, ''), $7, $8, "+
		"$9, $10, $11, $12, $13, $14, $15, $16, $14) ON CONFLICT (hash) DO UPDATE SET tier = excluded.tier, limits = excluded.limits, "+
		"disabled = excluded.disabled, not_before = excluded.not_before, expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, "+
		"revoked_by = excluded.revoked_by, revoke_reason = excluded.revoke_reason, revision = excluded.revision, updated_at = excluded.updated_at",
		sumOf(hash), r.Name, r.Client, r.User, r.Tenant, r.Tier, limits, r.State == directory.KeyInactive, instantOrNull(r.NotBefore),
		instantOrNull(r.ExpiresAt), revoked, by, reason, w.now, actor.Name, w.last)
	return err
}

// StrangeKeys returns those of the given names that belong to no key.
func StrangeKeys(ctx context.Context, c *pgx.Conn, names []directory.KeyName) (strange []directory.KeyName, err error) {
	hashes := make([]string, len(names))
	for i, name := range names {
		hashes[i] = name.Hash
	}
	keys, err := KeysOf(ctx, c, hashes)
	for _, name := range names {
		if k := keys[name.Hash]; k == nil || name.Name != "" && k.Record.Name != name.Name {
			strange = append(strange, name)
		}
	}
	return strange, err
}
