// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// These are the keys and the channel: see the package documentation.
const (
	recordPrefix  = "rl1:~who:"
	keyPrefix     = "rl1:~key:"
	keyNamesKey   = "rl1:~keys:{~directory}"
	networksKey   = "rl1:~networks:{~directory}"
	historyKey    = "rl1:~history:{~directory}"
	generationKey = "rl1:~generation:{~directory}"
	channel       = "rl1:~changed"
)

// swapScript replaces the value of a key if it has not changed since it was read.
//
//go:embed swap.lua
var swapScript string

// followAgain is the pause before a lost subscription is renewed. It varies by a half.
const followAgain = 200 * time.Millisecond

// Source implements [directory.Source]. A Source is safe for concurrent use.
type Source struct{ store *redisstore.Store }

var _ directory.Source = (*Source)(nil)

// New returns a source that keeps its records in the servers of a store. The caller closes the
// store after the last use of the source.
func New(store *redisstore.Store) *Source { return &Source{store: store} }

func recordKey(name policy.ClientName) string {
	if name.Kind == policy.KindKey {
		return keyPrefix + name.ID
	}
	return recordPrefix + name.Kind + ":" + name.ID
}

// Read implements [directory.Source].
func (s *Source) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = recordKey(name)
		if name.Kind == directory.KindNetwork {
			return s.readNetwork(ctx, names, texts)
		}
	}
	return wrapFailure(s.store.Values(ctx, keys, texts))
}

// readNetwork does what Read does, for one network.
func (s *Source) readNetwork(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	if len(names) != 1 {
		return errors.New("networks are read one at a time, or all together")
	}
	all, err := s.Networks(ctx)
	texts[0] = all[names[0].ID]
	return err
}

// Networks implements [directory.Source].
func (s *Source) Networks(ctx context.Context) (map[string][]byte, error) {
	_, all, err := s.networks(ctx)
	return all, err
}

// Source.networks returns the records of all networks, and the text that holds them.
func (s *Source) networks(ctx context.Context) (text []byte, all map[string][]byte, err error) {
	values := make([][]byte, 1)
	if err := s.store.Values(ctx, []string{networksKey}, values); err != nil {
		return nil, nil, wrapFailure(err)
	}
	if values[0] == nil {
		return nil, nil, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(values[0], &raw); err != nil {
		return nil, nil, fmt.Errorf("%w: the value at %q is no object: %w; delete it", directory.ErrGarbled, networksKey, err)
	}
	all = make(map[string][]byte, len(raw))
	for name, record := range raw {
		all[name] = record
	}
	return values[0], all, nil
}

// Generation implements [directory.Source].
func (s *Source) Generation(ctx context.Context) (string, error) {
	values := make([][]byte, 1)
	err := s.store.Values(ctx, []string{generationKey}, values)
	return string(values[0]), wrapFailure(err)
}

// wrapFailure wraps an error of the store.
func wrapFailure(err error) error {
	if err == nil {
		return nil
	}
	if failure, ok := errors.AsType[*redisstore.Failure](err); ok && failure.Kind == redisstore.KindSlow {
		return fmt.Errorf("%w: %w", directory.ErrBusy, err)
	}
	return fmt.Errorf("%w: %w", directory.ErrSource, err)
}

// Follow implements [directory.Source].
func (s *Source) Follow(ctx context.Context, changed func(policy.ClientName), missed func()) {
	for ctx.Err() == nil {
		_ = s.store.Listen(ctx, historyKey, channel, missed, func(message string) {
			if message == everything {
				missed()
			} else if kind, id, ok := strings.Cut(message, ":"); ok {
				changed(policy.ClientName{Kind: kind, ID: id})
			}
		})
		select {
		case <-ctx.Done():
		case <-time.After(followAgain/2 + rand.N(followAgain)):
		}
	}
}

// Swap implements [directory.Source].
func (s *Source) Swap(ctx context.Context, name policy.ClientName, old, text []byte, entry directory.Entry) (swapped bool, err error) {
	if _, err := s.makeGeneration(ctx); err != nil {
		return false, err
	}
	if name.Kind == directory.KindNetwork {
		swapped, err = s.swapNetwork(ctx, name.ID, old, text)
	} else {
		swapped, err = s.swap(ctx, recordKey(name), old, text)
	}
	if !swapped || err != nil {
		return false, err
	}
	return true, s.Announce(ctx, name, entry)
}

// makeGeneration makes a generation if there is none, and reports whether it did.
func (s *Source) makeGeneration(ctx context.Context) (made bool, err error) {
	_, err = s.store.DoFor(ctx, generationKey, "set", generationKey, strconv.FormatUint(rand.Uint64(), 36), "nx")
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, wrapFailure(err)
}

// Announce appends an entry to the history and notifies the followers, as Swap does.
func (s *Source) Announce(ctx context.Context, name policy.ClientName, entry directory.Entry) error {
	return s.announce(ctx, name.String(), entry)
}

// Source.announce appends entries to the history and publishes one message.
func (s *Source) announce(ctx context.Context, message string, entries ...directory.Entry) (err error) {
	for i := range entries {
		line, one := json.Marshal(entries[i])
		if one == nil {
			_, one = s.store.DoFor(ctx, historyKey, "xadd", historyKey, "maxlen", "~", directory.HistoryMax, "*", "e", line)
		}
		err = cmp.Or(err, one)
	}
	if _, wrong := s.store.DoFor(ctx, historyKey, "publish", channel, message); err == nil {
		err = wrong
	}
	if err != nil {
		return unannouncedError(err)
	}
	return nil
}

// unannouncedError returns the error for a change that was made, but not announced.
func unannouncedError(err error) error {
	return fmt.Errorf("%w: the change is made, but the other processes may learn of it only after minutes: %w", directory.ErrSource, err)
}

// Source.swap replaces the value of a key if it still equals old. An empty text means that there is
// no value.
func (s *Source) swap(ctx context.Context, key string, old, text []byte) (swapped bool, err error) {
	reply, err := s.store.DoFor(ctx, key, "eval", swapScript, 1, key, old, text)
	return reply == int64(1), wrapFailure(err)
}

// swapNetwork replaces the record of one network.
func (s *Source) swapNetwork(ctx context.Context, network string, old, text []byte) (swapped bool, err error) {
	var one [1]bool
	_, err = s.swapNetworks(ctx, []directory.Swap{{Name: policy.ClientName{Kind: directory.KindNetwork, ID: network}, Old: old, Text: text}}, one[:])
	return one[0], err
}

// swapNetworks replaces the records of networks within the value of all networks. The result named
// again is true if another process has replaced the value meanwhile; nothing is replaced in that
// case.
func (s *Source) swapNetworks(ctx context.Context, swaps []directory.Swap, swapped []bool) (again bool, err error) {
	before, all, err := s.networks(ctx)
	if err != nil {
		return false, err
	}
	raw := make(map[string]json.RawMessage, len(all)+len(swaps))
	for name, record := range all {
		raw[name] = record
	}
	fits := make([]bool, len(swaps))
	for i := range swaps {
		one := &swaps[i]
		if fits[i] = string(all[one.Name.ID]) == string(one.Old); !fits[i] {
			continue
		}
		if raw[one.Name.ID] = one.Text; one.Text == nil {
			delete(raw, one.Name.ID)
		}
	}
	switch {
	case !slices.Contains(fits, true):
		return false, nil
	case len(raw) > len(all) && len(raw) > directory.NetworksMax:
		return false, fmt.Errorf("%w: %d addresses and networks have records, and %d can; forget some, or use longer prefixes",
			directory.ErrEdit, len(all), directory.NetworksMax)
	}
	after, err := networksText(raw)
	if err != nil {
		return false, err
	}
	done, err := s.swap(ctx, networksKey, before, after)
	if done {
		copy(swapped, fits)
	}
	return !done, err
}

// This does not compile unless a value of NetworksBytesMax bytes can be read.
const _ = uint(redisstore.ValueBytesMax - directory.NetworksBytesMax)

// networksText returns the value that holds the records of networks, or nil for none.
func networksText(records map[string]json.RawMessage) ([]byte, error) {
	if len(records) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(records)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: the records of the networks: %w", directory.ErrEdit, err)
	case len(text) > directory.NetworksBytesMax:
		return nil, fmt.Errorf("%w: the records of all addresses and networks would have %d bytes, and may have %d; forget some, use longer "+
			"prefixes, or write shorter reasons", directory.ErrEdit, len(text), directory.NetworksBytesMax)
	}
	return text, nil
}
