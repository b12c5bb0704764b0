// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// BulkPrivilege lists the rights that the ACL user of a control plane needs, in addition to those
// of the store, ReadPrivilege and EditPrivilege. Listing records needs these rights as well.
const BulkPrivilege = "+scan"

// everything is the message that announces a change that may affect any record. The message names
// no client, so a process of an earlier release ignores it.
const everything = "*:*"

// Fill writes records. It adds nothing to the history, and publishes no message. A nil text removes
// a record. The name of a network is an error: use [Source.FillNetworks].
func (s *Source) Fill(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	keys := make([]string, len(names))
	for i, name := range names {
		if name.Kind == directory.KindNetwork {
			return fmt.Errorf("%w: %q is a network, and networks are written all together", directory.ErrEdit, name)
		}
		keys[i] = recordKey(name)
	}
	return wrapFailure(s.store.SetValues(ctx, keys, texts))
}

// FillNetworks replaces the records of all networks, and publishes no message.
func (s *Source) FillNetworks(ctx context.Context, texts map[string][]byte) error {
	raw := make(map[string]json.RawMessage, len(texts))
	for name, text := range texts {
		raw[name] = text
	}
	all, err := networksText(raw)
	if err != nil {
		return err
	}
	return wrapFailure(s.store.SetValues(ctx, []string{networksKey}, [][]byte{all}))
}

// Names calls each(...) for the names of all clients that have a record, except networks.
func (s *Source) Names(ctx context.Context, each func([]policy.ClientName) error) error {
	return s.store.Keys(ctx, recordPrefix+"*", func(keys []string) error {
		names := make([]policy.ClientName, 0, len(keys))
		for _, key := range keys {
			if kind, id, ok := strings.Cut(strings.TrimPrefix(key, recordPrefix), ":"); ok {
				names = append(names, policy.ClientName{Kind: kind, ID: id})
			}
		}
		return each(names)
	})
}

// HasRecords reports whether there is a record of a client other than a network, a record of a key,
// or a name of a key.
func (s *Source) HasRecords(ctx context.Context) (bool, error) {
	err := s.store.Keys(ctx, recordsPattern, func([]string) error { return errFound })
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, wrapFailure(err)
}

// recordsPattern matches the Redis keys of records, and the Redis key of the names of API keys.
const recordsPattern = "rl1:~[wk]*"

var errFound = errors.New("found")

// SetGeneration replaces the generation, and notifies all processes that any record may have
// changed. The generation "" means that the records are incomplete, so processes keep the records
// that they remember.
func (s *Source) SetGeneration(ctx context.Context, generation string) error {
	var text []byte
	if generation != "" {
		text = []byte(generation)
	}
	if err := wrapFailure(s.store.SetValues(ctx, []string{generationKey}, [][]byte{text})); err != nil || generation == "" {
		return err
	}
	_, err := s.store.DoFor(ctx, historyKey, "publish", channel, everything)
	return wrapFailure(err)
}

// KeyRecords calls each(...) for the SHA-256 of all API keys that have a record.
func (s *Source) KeyRecords(ctx context.Context, each func(hashes []string) error) error {
	return s.store.Keys(ctx, keyPrefix+"*", func(keys []string) error {
		hashes := make([]string, len(keys))
		for i, key := range keys {
			hashes[i] = strings.TrimPrefix(key, keyPrefix)
		}
		return each(hashes)
	})
}

// NameKeys adds keys to their names and removes others, in this order. A call may be repeated.
func (s *Source) NameKeys(ctx context.Context, add, remove []directory.KeyName) error {
	for _, one := range []struct {
		command []any
		keys    []directory.KeyName
		score   bool
	}{{[]any{"zadd", keyNamesKey}, add, true}, {[]any{"zrem", keyNamesKey}, remove, false}} {
		command := one.command
		for _, key := range one.keys {
			if one.score {
				command = append(command, 0)
			}
			command = append(command, member(key))
		}
		if len(one.keys) == 0 {
			continue
		}
		if _, err := s.store.DoFor(ctx, keyNamesKey, command...); err != nil {
			return wrapFailure(err)
		}
	}
	return nil
}
