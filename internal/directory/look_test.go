// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// deafSource is a source whose messages do not arrive. While away is set, the source does not
// answer at all. While emptied is set, the source has no generation.
type deafSource struct {
	directory.Memory
	away    atomic.Bool
	emptied atomic.Bool // while it is set, the generation is lost
}

func (d *deafSource) err() error {
	if d.away.Load() {
		return directory.ErrSource
	}
	return nil
}

func (d *deafSource) Follow(ctx context.Context, _ func(policy.ClientName), _ func()) { <-ctx.Done() }

func (d *deafSource) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	if err := d.err(); err != nil {
		return err
	}
	return d.Memory.Read(ctx, names, texts)
}

func (d *deafSource) Networks(ctx context.Context) (map[string][]byte, error) {
	if err := d.err(); err != nil {
		return nil, err
	}
	return d.Memory.Networks(ctx)
}

func (d *deafSource) Changes(ctx context.Context, after string) (directory.Changes, error) {
	if err := d.err(); err != nil {
		return directory.Changes{}, err
	}
	return d.Memory.Changes(ctx, after)
}

func (d *deafSource) Generation(ctx context.Context) (string, error) {
	if err := d.err(); err != nil || d.emptied.Load() {
		return "", err
	}
	return d.Memory.Generation(ctx)
}

// TestClientsOfALostDirectoryAreCounted tests that a new client counts as undirected after the
// source has lost its records, because it may have had a record. Otherwise, a client without a
// record does not count.
func TestClientsOfALostDirectoryAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := new(deafSource)
		edit(t, &source.Memory, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
		d := open(t, directory.Options{Source: source, Timeout: time.Second})
		synctest.Wait()
		for _, c := range []struct {
			emptied bool
			want    uint64
		}{{false, 0}, {true, 1}, {false, 1}} {
			source.emptied.Store(c.emptied)
			time.Sleep(36 * time.Second) // the time for one look at the history
			fetch(t, d, "user", fmt.Sprint("new-", c))
			if n := d.Figures().Undirected.Load(); n != c.want {
				t.Errorf("emptied %v: %d clients are counted, want %d", c.emptied, n, c.want)
			}
		}
	})
}

// TestOneLookIsEnough tests that a process that receives no messages has read every change after 33
// seconds. So a change is in force within 36 seconds. The same holds after an hour in which the
// source did not answer, although more has changed than the history keeps.
func TestOneLookIsEnough(t *testing.T) {
	const look = 33 * time.Second
	synctest.Test(t, func(t *testing.T) {
		source := new(deafSource)
		d := open(t, directory.Options{Source: source, Timeout: time.Second})
		blocked := func(want bool) {
			t.Helper()
			d.Find("user", "ann", now()) // Find reads the record again in the background if it may have changed
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			r, ok := d.Find("user", "ann", now())
			network := d.FindAddr(netip.MustParseAddr("192.0.2.7"), now())
			if !ok || (r != nil && r.Blocked) != want || (network != nil && network.Blocked) != want {
				t.Errorf("the client has %+v, and the network %+v; want blocked %v", r, network, want)
			}
		}
		change := func(action directory.Action) {
			t.Helper()
			edit(t, &source.Memory, directory.Edit{Client: "user:ann", Action: action})
			edit(t, &source.Memory, directory.Edit{Client: "ip:192.0.2.0/24", Action: action})
		}
		fetch(t, d, "user", "ann")
		change(directory.ActionBlock)
		time.Sleep(look)
		blocked(true)
		source.away.Store(true)
		change(directory.ActionUnblock)
		for i := range directory.HistoryMax + 1 {
			edit(t, &source.Memory, directory.Edit{Client: fmt.Sprint("user:u", i), Action: directory.ActionSetTier, Tier: "gold"})
		}
		time.Sleep(time.Hour)
		blocked(true)
		source.away.Store(false)
		time.Sleep(look)
		blocked(false)
	})
}
