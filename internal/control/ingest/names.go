// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/feed"
)

// NamesMax bounds the clients without a record that get rows of their own from one process. The
// usage of further clients is in the row with an empty client. Minute bounds the new clients of a
// minute. Day bounds the new clients of a day and, separately, the returning clients: those that
// had usage on the day before.
//
// A new client that gets rows takes a place of the minute and one of the day. Half of the places of
// a day are available when the day begins, and the other half becomes available evenly until the
// day ends. So a flood of made-up names does not take the places of the rest of the day.
type NamesMax struct{ Minute, Day int }

// dayPlaces returns how many clients without a record may have rows of their own by this time of
// the day. The number grows during the day.
func (m NamesMax) dayPlaces(now time.Time) int {
	const day = 24 * time.Hour
	passed := now.Sub(now.Truncate(day))
	return m.Day - m.Day/2 + int(float64(m.Day/2)*float64(passed)/float64(day))
}

// defaultNames allows a site a million visitors a day who have no record.
var defaultNames = NamesMax{Minute: 20_000, Day: 1_000_000}

// budget counts how many clients without a record have rows of their own.
type budget struct {
	mu          sync.Mutex
	minute, day time.Time
	used        places
}

// places counts rows that clients without a record have got as their own.
type places struct {
	inMinute, inDay int // of new clients
	returning       int // in the day, of clients with usage of the day before
}

// stranger is a client that has neither a record nor usage of the day.
type stranger struct {
	Client    string
	Returning bool // it has usage of the day before
}

// budget.take reserves places for the clients, in their order. It returns the clients for which
// there is no place, and a function that frees the reserved places.
func (b *budget) take(all []stranger, now time.Time, most NamesMax) (out map[string]bool, free func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if minute := now.Truncate(time.Minute); !minute.Equal(b.minute) {
		b.minute, b.used.inMinute = minute, 0
	}
	if day := now.Truncate(24 * time.Hour); !day.Equal(b.day) {
		b.day, b.used.inDay, b.used.returning = day, 0, 0
	}
	out = map[string]bool{}
	before, inDay := b.used, most.dayPlaces(now)
	for i := range all {
		switch s := &all[i]; {
		case s.Returning && b.used.returning < most.Day:
			b.used.returning++
		case !s.Returning && b.used.inDay < inDay && b.used.inMinute < most.Minute:
			b.used.inDay++
			b.used.inMinute++
		default:
			out[s.Client] = true
		}
	}
	taken := places{b.used.inMinute - before.inMinute, b.used.inDay - before.inDay, b.used.returning - before.returning}
	return out, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.used = places{max(0, b.used.inMinute-taken.inMinute), max(0, b.used.inDay-taken.inDay), max(0, b.used.returning-taken.returning)}
	}
}

// Ingester.unnamed returns the clients in a batch that get no rows of their own: they have neither
// a record, nor usage of the day, nor a place in the budget. The most active clients get the
// places. The feed's record counts the lines of the other clients, which get no place. The caller
// must call free if the batch is not written, so that the places can be used again.
func (i *Ingester) unnamed(ctx context.Context, tx pgx.Tx, b *Batch, now time.Time) (out map[string]bool, free func(), err error) {
	activity := map[string]int64{}
	for n := range b.Lines {
		if l := &b.Lines[n]; l.Kind == feed.KindUsage && l.Client != "" {
			activity[l.Client] += l.Admitted + l.Denied
		}
	}
	free = func() {}
	if len(activity) == 0 {
		return nil, free, nil
	}
	all, err := strangers(ctx, tx, slices.Sorted(maps.Keys(activity)), now)
	if err != nil {
		return nil, free, err
	}
	slices.SortFunc(all, func(a, b stranger) int {
		return cmp.Or(cmp.Compare(activity[b.Client], activity[a.Client]), cmp.Compare(a.Client, b.Client))
	})
	if out, free = i.names.take(all, now, cmp.Or(i.Names, defaultNames)); len(out) == 0 {
		return nil, free, nil
	}
	lines := 0
	for n := range b.Lines {
		if l := &b.Lines[n]; l.Kind == feed.KindUsage && out[l.Client] {
			lines++
		}
	}
	_, err = tx.Exec(ctx, "UPDATE feeds SET unnamed = unnamed + $2 WHERE feed = $1", b.Feed, lines)
	return out, free, err
}

// strangers returns those of the clients that have neither a record, nor a key, nor usage on the
// day of now.
func strangers(ctx context.Context, tx pgx.Tx, clients []string, now time.Time) ([]stranger, error) {
	kinds, ids := make([]string, len(clients)), make([]string, len(clients))
	for i, client := range clients {
		kinds[i], ids[i], _ = strings.Cut(client, ":")
	}
	rows, err := tx.Query(ctx, "SELECT n.client, EXISTS (SELECT FROM client_usage u WHERE u.client = n.client AND u.day = $4::date - 1) "+
		"FROM unnest($1::text[], $2::text[], $3::text[]) AS n (client, kind, id) "+
		"WHERE NOT EXISTS (SELECT FROM clients c WHERE c.kind = n.kind AND c.id = n.id) "+
		"AND NOT EXISTS (SELECT FROM api_keys k WHERE k.client = n.client) "+
		"AND NOT EXISTS (SELECT FROM client_usage u WHERE u.client = n.client AND u.day = $4::date)",
		clients, kinds, ids, now.Format(time.DateOnly))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[stranger])
}
