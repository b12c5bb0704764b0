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
	start, err := l.beginFill(ctx)
	if err != nil {
		return err
	}
	strange, err := l.Source.HasRecords(ctx)
	if err != nil {
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
	if l.at("strange"); strange {
		if err := errors.Join(l.removeStrangers(ctx), l.removeStrangeKeys(ctx)); err != nil {
			return err
		}
	}
	if err := l.endFill(ctx, s, start); err != nil {
		return err
	}
	l.Logger.Info("all records are in Redis", "region", l.Region, "records", count, "keys", keys,
		"duration", time.Since(began).Round(time.Millisecond))
	return nil
}

// beginFill removes the generation, and returns the position of the history. A record that another
// program writes from then on is in the history after this position, so the next look repairs it.
func (l *lockedPublisher) beginFill(ctx context.Context) (start string, err error) {
	l.at("begin")
	if err := l.Source.SetGeneration(ctx, ""); err != nil {
		return "", err
	}
	l.at("announce")
	// At the end, this entry must still be in the history. If the entry is not there, Redis was
	// emptied meanwhile.
	all := policy.ClientName{Kind: "*", ID: "*"}
	if err := l.Source.Announce(ctx, all, directory.Entry{At: l.Ledger.Instant(), Name: all.String(), Actor: "control", Action: "publish-all",
		Reason: "Redis did not have all records"}); err != nil {
		return "", err
	}
	changes, err := l.Source.Changes(ctx, "")
	if err != nil {
		return "", err
	}
	// Many rows may have been inserted just before. Without current statistics, each page would
	// read whole tables.
	_, err = l.c.Exec(ctx, "ANALYZE clients, overrides, grants, blocks, exemptions, api_keys")
	return changes.Position, err
}

// endFill sets the generation, unless Redis was emptied since the position.
func (l *lockedPublisher) endFill(ctx context.Context, s *state, start string) error {
	l.at("end")
	end, err := l.Source.Changes(ctx, start)
	if err != nil {
		return err
	}
	if !end.Whole {
		return errors.New("redis has lost records while they were written")
	}
	if err := l.Source.SetGeneration(ctx, s.generation); err != nil {
		return err
	}
	l.at("record")
	s.position = start
	_, err = l.c.Exec(ctx, "UPDATE region_publications SET change = $2, generation = $3, position = $4 WHERE region = $1",
		l.Region, s.change, s.generation, s.position)
	return err
}

// fillRows writes the records of all clients.
func (l *lockedPublisher) fillRows(ctx context.Context) (count int, err error) {
	networks := map[string][]byte{}
	present, err := l.Source.Networks(ctx)
	if err != nil && !errors.Is(err, directory.ErrGarbled) {
		return 0, err
	}
	after := policy.ClientName{}
	if err := l.writePages(ctx, func(ctx context.Context) (*page, bool, error) {
		clients, err := ledger.ClientsAfter(ctx, l.c, after, pageMax)
		if err != nil || len(clients) == 0 {
			return nil, false, err
		}
		after, count = clients[len(clients)-1].Name(), count+len(clients)
		p, err := l.pageOf(ctx, clients, networks, present)
		return p, len(clients) == pageMax, err
	}); err != nil {
		return count, err
	}
	if len(networks) > directory.NetworksMax {
		return count, errors.New("more addresses and networks have records than a directory holds: forget some, or use longer prefixes")
	}
	return count, l.Source.FillNetworks(ctx, networks)
}

// pageOf returns the records of clients, except those of networks, which it puts into networks. A
// client whose rows are not valid keeps its present record.
func (l *lockedPublisher) pageOf(ctx context.Context, clients []ledger.Client, networks, present map[string][]byte) (*page, error) {
	p := &page{names: make([]policy.ClientName, 0, len(clients)), texts: make([][]byte, 0, len(clients))}
	for i := range clients {
		name := clients[i].Name()
		text, problem := clients[i].Text()
		if err := l.judge(ctx, name, problem); err != nil {
			return nil, err
		}
		switch {
		case problem != "":
			if text, ok := present[name.ID]; ok && name.Kind == directory.KindNetwork {
				networks[name.ID] = text
			}
		case name.Kind == directory.KindNetwork:
			networks[name.ID] = text
		default:
			p.names, p.texts = append(p.names, name), append(p.texts, text)
		}
	}
	return p, nil
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
