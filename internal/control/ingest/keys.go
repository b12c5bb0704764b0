// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/feed"
)

// addKeys adds the uses of a line. The latest use of each key counts.
func addKeys(to map[string]time.Time, l *feed.Line) {
	for _, hash := range l.Keys {
		if hash = strings.ToLower(hash); l.Time.After(to[hash]) {
			to[hash] = l.Time
		}
	}
}

// addKeyUses writes those uses of existing keys that are later than the recorded ones. It locks
// rows in the order of the hashes, so it cannot deadlock with another batch or with a change that
// removes keys.
const addKeyUses = "INSERT INTO api_key_uses AS t (hash, last_used_at) " +
	"SELECT k.hash, n.at FROM unnest($1::bytea[], $2::timestamptz[]) AS n (hash, at) JOIN api_keys k ON k.hash = n.hash " +
	"LEFT JOIN api_key_uses u ON u.hash = n.hash WHERE u.hash IS NULL OR u.last_used_at < n.at ORDER BY k.hash " +
	"ON CONFLICT (hash) DO UPDATE SET last_used_at = greatest(t.last_used_at, excluded.last_used_at)"

// queueKeys adds the uses of keys to a batch of statements.
func queueKeys(batch *pgx.Batch, of map[string]time.Time) {
	if len(of) == 0 {
		return
	}
	var hashes [][]byte
	var ats []time.Time
	for _, text := range slices.Sorted(maps.Keys(of)) {
		hash, err := hex.DecodeString(text)
		if err != nil { // readLine has checked it
			continue
		}
		hashes, ats = append(hashes, hash), append(ats, of[text])
	}
	batch.Queue(addKeyUses, hashes, ats)
}
