// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/internal/storetest"
)

func openSentinel(t testing.TB, s *redistest.Sentinel, options Options) *Store {
	options.Mode, options.Addrs, options.Master = ModeSentinel, s.Addrs(), s.Name
	return open(t, options)
}

func TestStoreExamOverSentinels(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	exam(t, func(t testing.TB) storetest.Subject {
		keeper := bareOn(t, watched.Master())
		s := openSentinel(t, watched, Options{Timeout: TimeoutMax})
		return storetest.Subject{
			Store:   s,
			Pin:     func(now core.Micros) { s.pinned.Store(int64(now)) },
			Counter: keeper.counter,
			Penalty: keeper.penalty,
		}
	})
}

// TestSentinelFailoverUnderLoad kills the master, and the sentinel that is asked first: the replica takes its place, and nothing
// is charged twice.
func TestSentinelFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	f := start(t, openSentinel(t, watched, Options{}), 32)
	f.some(t)
	master := watched.Master()
	watched.Sentinels[0].Kill()
	master.Kill()
	f.failures(t, 200)
	watched.AwaitFailover(master)
	f.calm(t, time.Now())
	f.end(t)
	f.atMostOnce(t, watched.Master(), true)
}

// TestOrderlySentinelFailoverUnderLoad loses nothing, and the old master comes back as a replica.
func TestOrderlySentinelFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	f := startPaced(t, openSentinel(t, watched, Options{}), 32, time.Millisecond) // or the sentinels wait for the processor
	f.some(t)
	watched.Failover()
	f.some(t)
	f.end(t)
	f.atMostOnce(t, watched.Master(), true)
}
