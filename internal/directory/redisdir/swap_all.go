// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock/penstock/internal/directory"
)

const (
	// swapsAtOnce is how many records SwapAll replaces at the same time.
	swapsAtOnce = 16
	// networkSwapsMax is how often SwapAll tries to replace the value of all networks while others
	// replace it.
	networkSwapsMax = 20
)

// SwapAll implements [directory.Source]. Networks are replaced together.
func (s *Source) SwapAll(ctx context.Context, swaps []directory.Swap) (swapped []bool, err error) {
	swapped = make([]bool, len(swaps))
	var networks []directory.Swap
	var places []int
	errs := make([]error, len(swaps))
	free := make(chan struct{}, swapsAtOnce)
	var running sync.WaitGroup
	for i := range swaps {
		one := &swaps[i]
		if one.Name.Kind == directory.KindNetwork {
			networks, places = append(networks, *one), append(places, i)
			continue
		}
		free <- struct{}{}
		running.Go(func() {
			if swapped[i], errs[i] = s.swap(ctx, recordKey(one.Name), one.Old, one.Text); swapped[i] {
				errs[i] = s.Announce(ctx, one.Name, one.Entry)
			}
			<-free
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil || len(networks) == 0 {
		return swapped, err
	}
	done, err := s.swapNetworksOfAll(ctx, networks)
	for i, place := range places {
		swapped[place] = done[i]
	}
	return swapped, err
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
	return failed(err)
}
