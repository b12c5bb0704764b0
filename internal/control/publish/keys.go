// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// recordConcerned returns the record that a change of a client or of a key concerns. The name is
// zero if the change concerns no record. For a key, the text of the record is in c.After.
func recordConcerned(c *ledger.Change) (name policy.ClientName, key directory.KeyName, err error) {
	switch {
	case c.What == ledger.WhatClient:
		name, err = directory.ParseName(c.Subject)
	case c.What == ledger.WhatKey && c.After != nil:
		var text struct{ Hash string }
		err = json.Unmarshal([]byte(*c.After), &text)
		key = directory.KeyName{Name: c.Subject, Hash: text.Hash}
		name = key.Record()
	}
	return name, key, err
}

// settleKeys makes the records of keys and their names equal to the rows. The name may be "" if
// only the SHA-256 of a key is known. If announce is true, it also announces records that were
// equal.
func (l *lockedPublisher) settleKeys(ctx context.Context, keys []directory.KeyName, entryOf func(policy.ClientName) directory.Entry, announce bool) error {
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	names, hashes := make([]policy.ClientName, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		names[i], hashes[i] = key.Record(), key.Hash
	}
	rows, err := ledger.KeysOf(ctx, l.c, hashes)
	if err != nil {
		return err
	}
	present := make([][]byte, len(keys))
	if err := l.Source.Read(ctx, names, present); err != nil {
		return err
	}
	var add, remove []directory.KeyName
	swaps := make([]directory.Swap, 0, len(keys))
	for i, key := range keys {
		entry, want, problem := entryOf(names[i]), []byte(nil), ""
		// old is nil if there is no record, or if the record is not valid
		old, _ := directory.ParseKeyRecord(present[i])
		switch row := rows[key.Hash]; {
		case row != nil:
			want, entry.Name, problem = row.Record.Text(), row.Record.Client, row.Problem()
			add = append(add, directory.KeyName{Name: row.Record.Name, Hash: key.Hash})
		case old != nil:
			entry.Name = old.Client
			remove = append(remove, directory.KeyName{Name: old.Name, Hash: key.Hash})
		}
		if rows[key.Hash] == nil && key.Name != "" {
			remove = append(remove, key)
		}
		if err := l.judge(ctx, names[i], problem); err != nil {
			return err
		}
		if problem != "" { // what is in Redis stays
			add = add[:len(add)-1]
			continue
		}
		entry.Key = key.Hash
		entry.Client, _ = directory.ParseName(entry.Name)
		swaps = append(swaps, directory.Swap{Name: names[i], Old: present[i], Text: want, Entry: entry})
	}
	if err := l.replace(ctx, swaps, announce); err != nil {
		return err
	}
	return l.Source.NameKeys(ctx, add, remove)
}

// takeOverKeys imports the keys that are already in Redis, unless a control plane wrote them.
func (l *lockedPublisher) takeOverKeys(ctx context.Context, s *state, generation string) error {
	if !strings.HasPrefix(generation, directory.ControlledKeysPrefix) {
		if err := l.importKeys(ctx); err != nil {
			return err
		}
	}
	_, err := l.c.Exec(ctx, "INSERT INTO key_imports (region) VALUES ($1) ON CONFLICT DO NOTHING", l.Region)
	s.keysImported = err == nil
	return err
}

// importKeys imports the keys that are already in Redis.
func (l *lockedPublisher) importKeys(ctx context.Context) error {
	count := 0
	if err := l.Source.KeyRecords(ctx, func(hashes []string) error {
		names, texts := make([]policy.ClientName, len(hashes)), make([][]byte, len(hashes))
		for i, hash := range hashes {
			names[i] = directory.KeyName{Hash: hash}.Record()
		}
		if err := l.Source.Read(ctx, names, texts); err != nil {
			return err
		}
		records := make(map[string]*directory.KeyRecord, len(hashes))
		for i, hash := range hashes {
			if texts[i] != nil {
				records[hash], _ = directory.ParseKeyRecord(texts[i]) // nil is reported as bad
			}
		}
		bad, err := l.Ledger.ImportKeys(ctx, importer, records)
		count += len(records) - len(bad)
		if len(bad) > 0 {
			l.Logger.Warn("records of API keys in Redis that are not valid are not imported, and are removed", "keys", len(bad))
		}
		return err
	}); err != nil {
		return err
	}
	if count > 0 {
		l.Logger.Info("API keys that were in Redis are in the database now", "keys", count)
	}
	return nil
}

// fillKeys writes the records of all keys and their names.
func (l *lockedPublisher) fillKeys(ctx context.Context) (count int, err error) {
	after := ""
	err = l.writePages(ctx, func(ctx context.Context) (*page, bool, error) {
		keys, err := ledger.KeysAfter(ctx, l.c, after, pageMax)
		if err != nil || len(keys) == 0 {
			return nil, false, err
		}
		after, count = keys[len(keys)-1].Hash, count+len(keys)
		p := new(page)
		for i := range keys {
			name, problem := directory.KeyName{Name: keys[i].Record.Name, Hash: keys[i].Hash}, keys[i].Problem()
			if err := l.judge(ctx, name.Record(), problem); err != nil {
				return nil, false, err
			}
			if problem == "" {
				p.names, p.texts, p.keys = append(p.names, name.Record()), append(p.texts, keys[i].Record.Text()), append(p.keys, name)
			}
		}
		return p, len(keys) == pageMax, nil
	})
	return count, err
}

// removeStrangeKeys removes the records and the names in Redis of keys that have no rows.
func (l *lockedPublisher) removeStrangeKeys(ctx context.Context) error {
	if err := l.Source.KeyRecords(ctx, func(hashes []string) error {
		names := make([]directory.KeyName, len(hashes))
		for i, hash := range hashes {
			names[i].Hash = hash
		}
		strange, err := ledger.StrangeKeys(ctx, l.c, names)
		if err != nil {
			return err
		}
		records := make([]policy.ClientName, len(strange))
		for i, name := range strange {
			records[i] = name.Record()
		}
		return l.Source.Fill(ctx, records, make([][]byte, len(records)))
	}); err != nil {
		return err
	}
	for after := ""; ; {
		page, err := l.Source.KeysAfter(ctx, after, pageMax)
		if err != nil || len(page) == 0 {
			return err
		}
		strange, err := ledger.StrangeKeys(ctx, l.c, page)
		if err != nil {
			return err
		}
		if err := l.Source.NameKeys(ctx, nil, strange); err != nil {
			return err
		}
		after = page[len(page)-1].Name
		// The last name of a full page may have more keys than the page has, so the next page
		// begins with this name.
		if i := slices.IndexFunc(page, func(k directory.KeyName) bool { return k.Name == after }); len(page) == pageMax && i > 0 {
			after = page[i-1].Name
		}
	}
}
