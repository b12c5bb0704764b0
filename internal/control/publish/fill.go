// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// importer is the actor of an import in the audit trail.
var importer = ledger.Actor{Name: "control", Origin: "redis"}

// takeOver imports the records that are already in Redis.
func (l *lockedPublisher) takeOver(ctx context.Context, s *state) error {
	networks, err := l.Source.Networks(ctx)
	if err != nil {
		return err
	}
	count := 0
	take := func(names []policy.ClientName, texts [][]byte) error {
		records := make(map[policy.ClientName]*directory.Record, len(names))
		for i, name := range names {
			if texts[i] != nil {
				records[name], _ = directory.ParseRecord(texts[i]) // nil is reported as bad
			}
		}
		bad, err := l.Ledger.Import(ctx, importer, records)
		count += len(records) - len(bad)
		if len(bad) > 0 {
			l.Logger.Warn("records in Redis that are not valid are not imported, and are removed", "records", len(bad), "kind", bad[0].Kind)
		}
		return err
	}
	for id, text := range networks {
		if err := take([]policy.ClientName{{Kind: directory.KindNetwork, ID: id}}, [][]byte{text}); err != nil {
			return err
		}
	}
	if err := l.Source.Names(ctx, func(names []policy.ClientName) error {
		texts := make([][]byte, len(names))
		if err := l.Source.Read(ctx, names, texts); err != nil {
			return err
		}
		return take(names, texts)
	}); err != nil {
		return err
	}
	if _, err := l.c.Exec(ctx, "UPDATE region_publications SET imported = true WHERE region = $1", l.Region); err != nil {
		return err
	}
	s.imported = true
	if count > 0 {
		l.Logger.Info("records that were in Redis are in the database now", "region", l.Region, "records", count)
	}
	return nil
}

// fill writes all records to Redis, and then a new generation. Meanwhile there is no generation, so
// that processes keep the records that they remember.
func (l *lockedPublisher) fill(ctx context.Context, s *state) error {
	began := time.Now()
	s.generation = directory.ControlledKeysPrefix + rand.Text()
	if err := l.c.QueryRow(ctx, "SELECT change FROM chain").Scan(&s.change); err != nil {
		return err
	}
	if err := l.Source.SetGeneration(ctx, ""); err != nil {
		return err
	}
	// At the end, this entry must still be in the history. If the entry is not there, Redis was
	// emptied meanwhile.
	all := policy.ClientName{Kind: "*", ID: "*"}
	if err := l.Source.Announce(ctx, all, directory.Entry{At: l.Ledger.Instant(), Name: all.String(), Actor: "control", Action: "publish-all",
		Reason: "Redis did not have all records"}); err != nil {
		return err
	}
	start, err := l.Source.Changes(ctx, "")
	if err != nil {
		return err
	}
	// Many rows may have been inserted just before. Without current statistics, each page would
	// read whole tables.
	if _, err := l.c.Exec(ctx, "ANALYZE clients, overrides, grants, blocks, exemptions, api_keys"); err != nil {
		return err
	}
	count, err := l.fillRows(ctx)
	if err != nil {
		return err
	}
	keys, err := l.fillKeys(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(l.removeStrangers(ctx), l.removeStrangeKeys(ctx)); err != nil {
		return err
	}
	end, err := l.Source.Changes(ctx, start.Position)
	if err != nil {
		return err
	}
	if !end.Whole {
		return errors.New("redis has lost records while they were written")
	}
	if err := l.Source.SetGeneration(ctx, s.generation); err != nil {
		return err
	}
	s.position = start.Position
	if _, err := l.c.Exec(ctx, "UPDATE region_publications SET change = $2, generation = $3, position = $4 WHERE region = $1",
		l.Region, s.change, s.generation, s.position); err != nil {
		return err
	}
	l.Logger.Info("all records are in Redis", "region", l.Region, "records", count, "keys", keys,
		"duration", time.Since(began).Round(time.Millisecond))
	return nil
}

// fillRows writes the records of all clients.
func (l *lockedPublisher) fillRows(ctx context.Context) (count int, err error) {
	networks := map[string][]byte{}
	present, err := l.Source.Networks(ctx)
	if err != nil && !errors.Is(err, directory.ErrGarbled) {
		return 0, err
	}
	for after := (policy.ClientName{}); ; {
		page, err := l.fillPage(ctx, after, networks, present)
		if err != nil {
			return count, err
		}
		if count += len(page); len(page) < pageMax {
			break
		}
		after = page[len(page)-1].Name()
	}
	if len(networks) > directory.NetworksMax {
		return count, errors.New("more addresses and networks have records than a directory holds: forget some, or use longer prefixes")
	}
	return count, l.Source.FillNetworks(ctx, networks)
}

// fillPage writes the records of the next clients, and puts those of networks into networks. A
// client whose rows are not valid keeps its present record. After each page, it pauses for as long
// as the writing took, so that checks are not delayed.
func (l *lockedPublisher) fillPage(ctx context.Context, after policy.ClientName, networks, present map[string][]byte) ([]ledger.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*stepTime)
	defer cancel()
	page, err := ledger.ClientsAfter(ctx, l.c, after, pageMax)
	if err != nil {
		return nil, err
	}
	names, texts := make([]policy.ClientName, 0, len(page)), make([][]byte, 0, len(page))
	for _, client := range page {
		problem := client.Problem()
		if err := l.judge(ctx, client.Name(), problem); err != nil {
			return nil, err
		}
		switch name := client.Name(); {
		case problem != "":
			if text, ok := present[name.ID]; ok && name.Kind == directory.KindNetwork {
				networks[name.ID] = text
			}
		case name.Kind == directory.KindNetwork:
			networks[name.ID] = client.Record.Text()
		default:
			names, texts = append(names, name), append(texts, client.Record.Text())
		}
	}
	began := time.Now()
	if err := l.Source.Fill(ctx, names, texts); err != nil {
		return nil, err
	}
	pause(ctx, min(time.Since(began), stepTime))
	return page, nil
}

// removeStrangers removes the records in Redis of clients that have no rows.
func (l *lockedPublisher) removeStrangers(ctx context.Context) error {
	return l.Source.Names(ctx, func(names []policy.ClientName) error {
		var known, strangers []policy.ClientName
		for _, name := range names {
			if _, err := ledger.Name(name.String()); err != nil { // the database cannot contain such a name
				strangers = append(strangers, name)
			} else {
				known = append(known, name)
			}
		}
		unknown, err := ledger.Strangers(ctx, l.c, known)
		if err != nil {
			return err
		}
		strangers = append(strangers, unknown...)
		return l.Source.Fill(ctx, strangers, make([][]byte, len(strangers)))
	})
}
