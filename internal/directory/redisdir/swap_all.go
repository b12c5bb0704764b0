// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/internal/directory"
)

// networkSwapsMax is how many times SwapAll tries to replace the value of all networks while others
// replace it, too.
const networkSwapsMax = 20

// SwapAll implements [directory.Source]. Networks are replaced together.
func (s *Source) SwapAll(ctx context.Context, swaps []directory.Swap) (swapped []bool, err error) {
	swapped = make([]bool, len(swaps))
	var networks []directory.Swap
	var places, others []int
	var keys []string
	var commands [][]any
	for i := range swaps {
		one := &swaps[i]
		if one.Name.Kind == directory.KindNetwork {
			networks, places = append(networks, *one), append(places, i)
			continue
		}
		key := recordKey(one.Name)
		others, keys, commands = append(others, i), append(keys, key), append(commands, []any{"eval", swapScript, 1, key, one.Old, one.Text})
	}
	replies, errs, err := s.store.DoAll(ctx, keys, commands)
	var done []*directory.Swap
	for i, place := range others {
		if swapped[place] = err == nil && replies[i] == int64(1); swapped[place] {
			done = append(done, &swaps[place])
		}
	}
	if err := errors.Join(wrapFailure(cmp.Or(err, firstError(errs))), s.announceAll(ctx, done)); err != nil || len(networks) == 0 {
		return swapped, err
	}
	replaced, err := s.swapNetworksOfAll(ctx, networks)
	for i, place := range places {
		swapped[place] = replaced[i]
	}
	return swapped, err
}

// firstError returns the first error, or nil.
func firstError(errs []error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}

// AnnounceAll appends entries to the history and notifies the followers, as SwapAll does for
// records that it has replaced.
func (s *Source) AnnounceAll(ctx context.Context, swaps []directory.Swap) error {
	all := make([]*directory.Swap, len(swaps))
	for i := range swaps {
		all[i] = &swaps[i]
	}
	return s.announceAll(ctx, all)
}

// announceAll announces replacements, each with its own message.
func (s *Source) announceAll(ctx context.Context, done []*directory.Swap) error {
	if len(done) == 0 {
		return nil
	}
	var keys []string
	var commands [][]any
	for _, one := range done {
		line, err := json.Marshal(one.Entry)
		if err != nil {
			return err
		}
		keys, commands = append(keys, historyKey, historyKey), append(commands,
			[]any{"xadd", historyKey, "maxlen", "~", directory.HistoryMax, "*", "e", line}, []any{"publish", channel, one.Name.String()})
	}
	_, errs, err := s.store.DoAll(ctx, keys, commands)
	if err = cmp.Or(err, firstError(errs)); err != nil {
		return unannouncedError(err)
	}
	return nil
}

// swapNetworksOfAll replaces the records of networks, and publishes one message for all of them.
func (s *Source) swapNetworksOfAll(ctx context.Context, networks []directory.Swap) (swapped []bool, err error) {
	swapped = make([]bool, len(networks))
	for range networkSwapsMax {
		again, err := s.swapNetworks(ctx, networks, swapped)
		if err != nil {
			return swapped, err
		}
		if again {
			continue
		}
		var entries []directory.Entry
		for i := range networks {
			if swapped[i] {
				entries = append(entries, networks[i].Entry)
			}
		}
		if len(entries) == 0 {
			return swapped, nil
		}
		return swapped, s.announce(ctx, networks[0].Name.String(), entries...)
	}
	return swapped, fmt.Errorf("%w: others keep changing the records of networks; try again", directory.ErrSource)
}

// Complete implements [directory.Source].
func (s *Source) Complete(ctx context.Context) error {
	made, err := s.makeGeneration(ctx)
	if err != nil || !made {
		return err
	}
	_, err = s.store.DoFor(ctx, historyKey, "publish", channel, everything)
	return wrapFailure(err)
}
