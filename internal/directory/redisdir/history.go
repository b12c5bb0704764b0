// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"context"
	"encoding/json"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// beginning is the position before the first entry of a stream.
const beginning = "0-0"

// Changes implements [directory.Source]. A position is the identifier of an entry of the stream.
func (s *Source) Changes(ctx context.Context, after string) (directory.Changes, error) {
	if after == "" {
		entries, err := s.entries(ctx, "xrevrange", historyKey, "+", "-", "count", 1)
		c := directory.Changes{Position: beginning, Whole: true}
		if len(entries) > 0 {
			c.Position = entries[0].position
		}
		return c, err
	}
	from := after
	if after == beginning {
		from = "-"
	}
	entries, err := s.entries(ctx, "xrange", historyKey, from, "+", "count", directory.HistoryMax)
	if err != nil {
		return directory.Changes{}, err
	}
	c := directory.Changes{Position: after, Whole: after == beginning || len(entries) > 0 && entries[0].position == after}
	if !c.Whole {
		return s.lostPosition(ctx)
	}
	for _, e := range entries {
		if e.position != after {
			c.Names, c.Position = append(c.Names, e.Changed()), e.position
		}
	}
	return c, nil
}

// lostPosition returns the present position, when the one before is no longer in the stream.
func (s *Source) lostPosition(ctx context.Context) (directory.Changes, error) {
	c, err := s.Changes(ctx, "")
	c.Whole = false
	return c, err
}

// History implements [directory.Source].
func (s *Source) History(ctx context.Context, name policy.ClientName, most int) ([]directory.Entry, error) {
	entries, err := s.entries(ctx, "xrevrange", historyKey, "+", "-")
	var found []directory.Entry
	for _, e := range entries {
		if len(found) < most && (name == policy.ClientName{} || e.Client == name) {
			found = append(found, e.Entry)
		}
	}
	return found, err
}

// streamEntry is an entry of the stream with its identifier.
type streamEntry struct {
	directory.Entry
	position string
}

// entries runs a command that returns entries of the stream. Entries that Penstock has not written
// are left out, but for their position.
func (s *Source) entries(ctx context.Context, command ...any) ([]streamEntry, error) {
	reply, err := s.store.DoFor(ctx, historyKey, command...)
	if err != nil {
		return nil, failed(err)
	}
	items, _ := reply.([]any)
	entries := make([]streamEntry, 0, len(items))
	for _, item := range items {
		pair, _ := item.([]any)
		if len(pair) != 2 {
			continue
		}
		var e streamEntry
		e.position, _ = pair[0].(string)
		if fields, _ := pair[1].([]any); len(fields) == 2 {
			text, _ := fields[1].(string)
			if json.Unmarshal([]byte(text), &e.Entry) == nil {
				e.Client, _ = directory.ParseName(e.Name)
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}
