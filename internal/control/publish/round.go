// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// lockedPublisher is a publisher that holds the lock.
type lockedPublisher struct {
	*Publisher
	c *pgx.Conn // the connection that holds the lock
	// unsure is true if the next changes may already be in Redis without having been announced.
	unsure bool
	// recorded is the reason for an interruption as the database has it; nil if it is not known
	// what the database has.
	recorded *string
	// invalid holds what is not published because its rows are not valid, with the reasons. It is
	// nil until it has been read from the database.
	invalid map[policy.ClientName]string
}

// state is the row that records the last change that was published to Redis.
type state struct {
	change               int64
	generation, position string
	imported             bool // the clients that Redis had are in the tables
	keysImported         bool // the keys, too
}

// lockedPublisher.round brings Redis to the state of the rows. If look is true, it also finds
// records that other programs wrote to Redis.
func (l *lockedPublisher) round(ctx context.Context, look bool) error {
	var s state
	if err := l.c.QueryRow(ctx, "SELECT change, generation, position, imported, EXISTS (SELECT FROM key_imports WHERE region = $1) "+
		"FROM region_publications WHERE region = $1", l.Region).Scan(&s.change, &s.generation, &s.position, &s.imported, &s.keysImported); err != nil {
		return err
	}
	whole, err := l.isComplete(ctx, &s)
	if err != nil {
		return err
	}
	if err := l.adopt(ctx); err != nil {
		return err
	}
	if !whole {
		if err := l.fill(ctx, &s); err != nil {
			return err
		}
	}
	for more := true; more; {
		if more, err = l.publish(ctx, &s); err != nil {
			return err
		}
	}
	if look {
		return l.repair(ctx, &s)
	}
	return nil
}

// isComplete reports whether Redis has the records that this database has published. isComplete
// imports the records of a directory that had no control plane. A Redis to which this database has
// published under another name of its region keeps its records.
func (l *lockedPublisher) isComplete(ctx context.Context, s *state) (bool, error) {
	step, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	generation, err := l.Source.Generation(step)
	if err != nil {
		return false, err
	}
	if !s.imported {
		if strings.HasPrefix(generation, directory.ControlledPrefix) {
			if err := l.resume(step, s, generation); err != nil {
				return false, err
			}
		} else if err := l.takeOver(ctx, s); err != nil {
			return false, err
		}
	}
	if !s.keysImported { // keys may be only in Redis, where a control plane of an earlier release left them
		return false, l.takeOverKeys(ctx, s, generation)
	}
	return generation != "" && generation == s.generation, nil
}

// lockedPublisher.resume continues a publication to the same Redis that was made when its region
// had another name, for example before the control plane had regions. Changes since then may be
// published twice, which changes nothing. lockedPublisher.resume returns an error if there is no
// such publication.
func (l *lockedPublisher) resume(ctx context.Context, s *state, generation string) error {
	err := l.c.QueryRow(ctx, "UPDATE region_publications AS new SET change = old.change, generation = old.generation, position = old.position, imported = true "+
		"FROM (SELECT change, generation, position FROM region_publications WHERE generation = $2 AND region <> $1 ORDER BY change LIMIT 1) AS old "+
		"WHERE new.region = $1 RETURNING new.change, new.generation, new.position", l.Region, generation).Scan(&s.change, &s.generation, &s.position)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("another control plane owns the directory in this Redis: name its database, or, if that is lost, run " +
			"redis-cli del 'rl1:~generation:{~directory}' to take over the records")
	}
	if err != nil {
		return err
	}
	s.imported = true
	tag, err := l.c.Exec(ctx, "INSERT INTO key_imports (region) SELECT $1 WHERE EXISTS (SELECT FROM region_publications JOIN key_imports USING (region) "+
		"WHERE generation = $2) ON CONFLICT DO NOTHING", l.Region, generation)
	s.keysImported = s.keysImported || tag.RowsAffected() > 0
	return err
}

// publish publishes the next changes, and reports whether there are more.
func (l *lockedPublisher) publish(ctx context.Context, s *state) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	rows, err := l.c.Query(ctx, "SELECT change, at, actor, what, subject, action, reason, CASE WHEN what = $3 THEN coalesce(after, before) END "+
		"FROM changes WHERE change > $1 ORDER BY change LIMIT $2", s.change, pageMax, ledger.WhatKey)
	if err != nil {
		return false, err
	}
	changes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ledger.Change, err error) {
		return c, row.Scan(&c.Number, &c.At, &c.Actor, &c.What, &c.Subject, &c.Action, &c.Reason, &c.After)
	})
	if err != nil || len(changes) == 0 {
		return false, err
	}
	entries, names, keys := map[policy.ClientName]directory.Entry{}, []policy.ClientName(nil), []directory.KeyName(nil)
	for _, c := range changes {
		name, key, err := recordConcerned(&c)
		if err != nil {
			return false, fmt.Errorf("change %d: %w", c.Number, err)
		}
		switch _, known := entries[name]; {
		case name == policy.ClientName{}:
			continue
		case !known && name.Kind == policy.KindKey:
			keys = append(keys, key)
		case !known:
			names = append(names, name)
		}
		entries[name] = directory.Entry{At: c.At.UTC(), Actor: c.Actor, Action: c.Action, Reason: c.Reason}
	}
	l.at("changes")
	entryOf := func(name policy.ClientName) directory.Entry { return entries[name] }
	if err := l.settle(ctx, names, entryOf, l.unsure); err != nil {
		return false, err
	}
	if err := l.settleKeys(ctx, keys, entryOf, l.unsure); err != nil {
		return false, err
	}
	l.at("published")
	s.change = changes[len(changes)-1].Number
	_, err = l.c.Exec(ctx, "UPDATE region_publications SET change = $2 WHERE region = $1", l.Region, s.change)
	return len(changes) == pageMax, err
}

// repair replaces the records that other programs have written to Redis since the last look. If the
// history does not reach back that far, Redis was emptied or restored from a backup, and all
// records are written again.
func (l *lockedPublisher) repair(ctx context.Context, s *state) error {
	step, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	changes, err := l.Source.Changes(step, s.position)
	if err != nil {
		return err
	}
	if !changes.Whole {
		return l.fill(ctx, s)
	}
	names, keys := make([]policy.ClientName, 0, len(changes.Names)), []directory.KeyName(nil)
	seen := map[policy.ClientName]bool{}
	for _, name := range changes.Names {
		if seen[name] {
			continue
		}
		seen[name] = true
		if name.Kind == policy.KindKey {
			keys = append(keys, directory.KeyName{Hash: name.ID})
		} else if _, err := ledger.Name(name.String()); err == nil { // some entries name no client
			names = append(names, name)
		}
	}
	undo := func(policy.ClientName) directory.Entry {
		return directory.Entry{At: l.Ledger.Instant(), Actor: "control", Action: "restore", Reason: "the control plane's database says otherwise"}
	}
	for page := range slices.Chunk(names, pageMax) {
		if err := l.settle(ctx, page, undo, false); err != nil {
			return err
		}
	}
	for page := range slices.Chunk(keys, pageMax) {
		if err := l.settleKeys(ctx, page, undo, false); err != nil {
			return err
		}
	}
	s.position = changes.Position
	_, err = l.c.Exec(ctx, "UPDATE region_publications SET position = $2 WHERE region = $1", l.Region, s.position)
	return err
}

// errRaced is the error if another program writes the same record.
var errRaced = errors.New("another program writes the same record in Redis")

// settle makes the records of clients equal to their rows. If announce is true, it also announces
// records that were equal already.
func (l *lockedPublisher) settle(ctx context.Context, names []policy.ClientName, entryOf func(policy.ClientName) directory.Entry, announce bool) error {
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	rows, err := ledger.ClientsOf(ctx, l.c, names)
	if err != nil {
		return err
	}
	present, err := l.present(ctx, names)
	if err != nil {
		return err
	}
	swaps := make([]directory.Swap, 0, len(names))
	for _, name := range names {
		var want []byte
		problem, old := "", present[name]
		if row := rows[name]; row != nil {
			want, problem = row.Text()
		}
		if err := l.judge(ctx, name, problem); err != nil {
			return err
		}
		if problem != "" { // what is in Redis stays
			continue
		}
		entry := entryOf(name)
		entry.Client, entry.Name = name, name.String()
		swaps = append(swaps, directory.Swap{Name: name, Old: old, Text: want, Entry: entry})
	}
	return l.replace(ctx, swaps, announce)
}

// replace replaces records in Redis, each with an entry of the history. If announce is true, it
// also announces records that are equal already. All records are in one pipeline: a round trip for
// each would take minutes if Redis is far away.
func (l *lockedPublisher) replace(ctx context.Context, swaps []directory.Swap, announce bool) error {
	var different, equal []directory.Swap
	for _, swap := range swaps {
		swap.Entry.Before, swap.Entry.After = string(swap.Old), string(swap.Text)
		if bytes.Equal(swap.Text, swap.Old) {
			equal = append(equal, swap)
		} else {
			different = append(different, swap)
		}
	}
	if announce {
		if err := l.Source.AnnounceAll(ctx, equal); err != nil {
			return err
		}
	}
	swapped, err := l.Source.SwapAll(ctx, different)
	if err == nil && slices.Contains(swapped, false) {
		err = errRaced
	}
	return err
}

// lockedPublisher.present returns the texts of records in Redis.
func (l *lockedPublisher) present(ctx context.Context, names []policy.ClientName) (map[policy.ClientName][]byte, error) {
	texts := make(map[policy.ClientName][]byte, len(names))
	var single []policy.ClientName
	var networks map[string][]byte
	for _, name := range names {
		if name.Kind != directory.KindNetwork {
			single = append(single, name)
			continue
		}
		if networks == nil {
			var err error
			if networks, err = l.Source.Networks(ctx); err != nil {
				return nil, err
			}
		}
		if text, ok := networks[name.ID]; ok {
			texts[name] = text
		}
	}
	read := make([][]byte, len(single))
	if err := l.Source.Read(ctx, single, read); err != nil {
		return nil, err
	}
	for i, name := range single {
		if read[i] != nil {
			texts[name] = read[i]
		}
	}
	return texts, nil
}
