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

// pageMax is the greatest number of entries in one reply. An entry contains two records of up to
// [directory.RecordBytesMax] bytes, whose JSON may be twice as long, and a reply of Redis has a
// bound.
const pageMax = 128

// Changes implements [directory.Source]. A position is the identifier of an entry of the stream. If
// a read of the stream fails, Changes returns the changes that it has read so far, with their
// position.
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
	entries, err := s.entries(ctx, "xrange", historyKey, from, "+", "count", pageMax)
	if err != nil {
		return directory.Changes{}, err
	}
	c := directory.Changes{Position: after, Whole: after == beginning || len(entries) > 0 && entries[0].position == after}
	if !c.Whole {
		return s.lostPosition(ctx)
	}
	for {
		before := c.Position
		for _, e := range entries {
			if e.position != before { // a page begins with the last entry of the previous page
				c.Names, c.Position = append(c.Names, e.Changed()), e.position
			}
		}
		if len(entries) < pageMax || c.Position == before || len(c.Names) > directory.HistoryMax {
			return c, nil
		}
		if entries, err = s.entries(ctx, "xrange", historyKey, c.Position, "+", "count", pageMax); err != nil {
			return c, nil // the remaining entries are read next time
		}
	}
}

// lostPosition returns the present position. The caller uses lostPosition if the previous position
// is no longer in the stream.
func (s *Source) lostPosition(ctx context.Context) (directory.Changes, error) {
	c, err := s.Changes(ctx, "")
	c.Whole = false
	return c, err
}

// History implements [directory.Source].
func (s *Source) History(ctx context.Context, name policy.ClientName, most int) ([]directory.Entry, error) {
	var found []directory.Entry
	last := "+"
	for range 2 * directory.HistoryMax / pageMax {
		entries, err := s.entries(ctx, "xrevrange", historyKey, last, "-", "count", pageMax)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			switch {
			case e.position == last: // the position of the previous page
			case len(found) == most:
				return found, nil
			case name == policy.ClientName{} || e.Client == name:
				found = append(found, e.Entry)
			}
		}
		if len(entries) < pageMax {
			break
		}
		last = entries[len(entries)-1].position
	}
	return found, nil
}

// streamEntry is an entry of the stream with its identifier.
type streamEntry struct {
	directory.Entry
	position string
}

// Source.entries runs a command that returns entries of the stream. For an entry that Penstock has
// not written, it returns only the position.
func (s *Source) entries(ctx context.Context, command ...any) ([]streamEntry, error) {
	reply, err := s.store.DoFor(ctx, historyKey, command...)
	if err != nil {
		return nil, wrapFailure(err)
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
