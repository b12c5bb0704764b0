// SPDX-License-Identifier: Apache-2.0

package topk

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/test/seed"
)

// clock is a time that tests set.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// TestBoundOnZipf checks every count, and the clients that are not listed, against an exact count.
func TestBoundOnZipf(t *testing.T) {
	const denials, clients = 300_000, 50_000
	r := rand.New(rand.NewPCG(seed.First(t), 1))
	zipf := rand.NewZipf(r, 1.1, 1, clients-1)
	s := New(Options{Now: (&clock{time.Unix(1e9, 0)}).now})
	exact := map[string]uint64{}
	for range denials {
		client := fmt.Sprint("ip:", zipf.Uint64())
		exact[client]++
		s.Add("shop", client)
	}
	listed := map[string]Entry{}
	var sum uint64
	for _, e := range s.Top(Entries) {
		listed[e.Client] = e
		sum += e.Denied
		if n := exact[e.Client]; e.Denied < n || n+e.Over < e.Denied {
			t.Errorf("%s was refused %d times: %+v", e.Client, n, e)
		}
	}
	if len(listed) != Entries || sum != denials {
		t.Errorf("%d clients with %d denials are listed", len(listed), sum)
	}
	for i := range s.shards {
		at := &s.shards[i]
		total, least := uint64(0), at.counts[0]
		for k := range at.used {
			total, least = total+at.counts[k], min(least, at.counts[k])
		}
		bound := total / shardEntries
		if least > bound {
			t.Errorf("shard %d: the least count is %d, more than N/%d = %d", i, least, shardEntries, bound)
		}
		for k := range at.used {
			if at.overs[k] > bound {
				t.Errorf("shard %d: %d is over N/%d = %d", i, at.overs[k], shardEntries, bound)
			}
		}
	}
	missed := 0
	for client, n := range exact {
		if _, ok := listed[client]; !ok && n > denials/100 {
			t.Errorf("%s was refused %d times and is not listed", client, n)
		} else if !ok && n > denials/Entries {
			missed++
		}
	}
	if missed > 0 {
		t.Logf("%d clients over a %dth of all are not listed: their shards had more than their part", missed, Entries)
	}
	top := s.Top(10)
	for i := range 5 { // the first five of a Zipf distribution differ clearly
		if want := fmt.Sprint("ip:", i); top[i].Client != want {
			t.Errorf("place %d is %+v, want %s", i, top[i], want)
		}
	}
}

func TestPolicyAndClientMakeTheEntry(t *testing.T) {
	s := New(Options{Now: (&clock{time.Unix(1e9, 0)}).now})
	for range 3 {
		s.Add("a", "bc")
	}
	for range 2 {
		s.Add("ab", "c")
	}
	s.Add("", "abc")
	want := []Entry{{"a", "bc", 3, 0}, {"ab", "c", 2, 0}, {"", "abc", 1, 0}}
	if diff := cmp.Diff(want, s.Top(10)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := s.Top(1); len(got) != 1 || got[0] != want[0] {
		t.Errorf("%+v", got)
	}
	if got := s.Top(-1); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestLongNamesAreCutAndStayDistinct(t *testing.T) {
	s := New(Options{})
	long := strings.Repeat("x", 2*NameBytesMax)
	s.Add("p", long)
	s.Add("p", long)
	s.Add("p", long+"y")
	s.Add("p", long[:len(long)-1]+"z") // this name has the same length and the same kept part
	s.Add(long, long)
	top := s.Top(10)
	if len(top) != 4 || top[0].Denied != 2 {
		t.Fatalf("%d entries", len(top))
	}
	for _, e := range top {
		if len(e.Policy)+len(e.Client) > NameBytesMax {
			t.Errorf("%d bytes are kept", len(e.Policy)+len(e.Client))
		}
	}
}

func TestYesterdaysAttackerLeaves(t *testing.T) {
	c := &clock{time.Unix(3600*1000, 0)}
	s := New(Options{Now: c.now})
	for range 1_000_000 {
		s.Add("shop", "attacker")
	}
	c.at = c.at.Add(time.Hour)
	s.Add("shop", "neighbour")
	if got := s.Top(1)[0]; got.Denied != 500_000 || got.Over > 1 {
		t.Errorf("after an hour: %+v", got)
	}
	c.at = c.at.Add(10 * time.Hour)
	s.Add("shop", "somebody")
	if got := s.Top(2); got[0].Client != "attacker" || got[0].Denied != 489 {
		t.Errorf("after 11 hours: %+v", got)
	}
	c.at = c.at.Add(13 * time.Hour)
	s.Add("shop", "somebody")
	if got := s.Top(2); len(got) != 1 || got[0].Client != "somebody" {
		t.Errorf("after a day: %+v", got)
	}
	c.at = c.at.Add(1000 * time.Hour)
	if got := s.Top(2); len(got) != 0 {
		t.Errorf("after a month: %+v", got)
	}
	c.at = c.at.Add(-2000 * time.Hour) // this simulates a clock that goes back
	s.Add("shop", "now")
	if got := s.Top(2); len(got) != 1 || got[0].Client != "now" || got[0].Denied != 1 {
		t.Errorf("after the clock went back: %+v", got)
	}
}

// TestBoundHoldsWhileCountsDecay compares the counts with exact counts that are halved at the same
// times.
func TestBoundHoldsWhileCountsDecay(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.First(t), 2))
	zipf := rand.NewZipf(r, 1.2, 1, 4999)
	c := &clock{time.Unix(3600*1000, 0)}
	s := New(Options{Now: c.now})
	exact := map[string]float64{}
	for i := range 100_000 {
		if i%7000 == 0 {
			c.at = c.at.Add(time.Hour)
			for client := range exact {
				exact[client] /= 2
			}
		}
		client := fmt.Sprint(zipf.Uint64())
		exact[client]++
		s.Add("", client)
	}
	for _, e := range s.Top(Entries) {
		if n := exact[e.Client]; float64(e.Denied) < n || n < float64(e.Denied)-float64(e.Over) {
			t.Errorf("%+v, want %f", e, n)
		}
	}
}

func TestAddAllocatesNothingOnceFull(t *testing.T) {
	s := New(Options{})
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprint("client", i)
		s.Add("shop", names[i])
	}
	i := 0
	if n := testing.AllocsPerRun(10_000, func() {
		s.Add("shop", names[i%len(names)])
		s.Add("shop", names[0])
		i += 37
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestManyHandsLoseNothing(t *testing.T) {
	s := New(Options{Now: (&clock{time.Unix(1e9, 0)}).now})
	var group sync.WaitGroup
	for hand := range 4 {
		group.Go(func() {
			for i := range 5000 {
				s.Add("shop", fmt.Sprint(i%(100*(hand+1))))
				if i%1000 == 0 {
					s.Top(3)
				}
			}
		})
	}
	group.Wait()
	var sum uint64
	for _, e := range s.Top(Entries) {
		sum += e.Denied
	}
	if sum != 20_000 {
		t.Errorf("%d denials are counted of 20,000", sum)
	}
}

func BenchmarkAdd(b *testing.B) {
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprint("ip:192.0.2.", i)
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(len(names)-1))
	order := make([]string, 1<<16)
	for i := range order {
		order[i] = names[zipf.Uint64()]
	}
	for name, list := range map[string][]string{"zipf": order, "always new": names, "one": names[:1]} {
		b.Run(name, func(b *testing.B) {
			s := New(Options{})
			for i := 0; b.Loop(); i++ {
				s.Add("shop", list[i%len(list)])
			}
		})
	}
}
