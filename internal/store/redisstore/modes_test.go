// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestModes(t *testing.T) {
	for _, test := range []struct {
		options Options
		name    string // the servers, as the log names them
		seeds   []string
	}{
		{Options{URL: "redis://me:secret@host/2"}, "redis://host:6379/2", nil},
		{Options{URL: "redis://host", Mode: ModeSingle}, "redis://host:6379/0", nil},
		{Options{Mode: ModeCluster, Addrs: []string{"a", "b:1", "[::1]:2", "::1"}}, "cluster redis://a:6379,b:1,[::1]:2,[::1]:6379",
			[]string{"a:6379", "b:1", "[::1]:2", "[::1]:6379"}},
		{Options{URL: "rediss://me:secret@a", Mode: ModeCluster, Addrs: []string{"b"}}, "cluster rediss://a:6379,b:6379",
			[]string{"a:6379", "b:6379"}},
		{Options{URL: "rediss://me:secret@a/3", Mode: ModeSentinel, Addrs: []string{"b"}, Master: "m"},
			"master m of rediss://a:26379,b:26379", []string{"a:26379", "b:26379"}},
		{Options{Mode: ModeRing, Addrs: []string{"b", "a:1"}}, "ring redis://b:6379,a:1", []string{"b:6379", "a:1"}},
		{Options{URL: "rediss://me:secret@a/3", Mode: ModeRing, Addrs: []string{"b"}}, "ring rediss://a:6379,b:6379",
			[]string{"a:6379", "b:6379"}},
	} {
		s, err := test.options.settings()
		if err != nil {
			t.Errorf("%+v: %v", test.options, err)
			continue
		}
		if s.String() != test.name || !slices.Equal(s.seeds, test.seeds) {
			t.Errorf("%+v: %s, %q; want %s, %q", test.options, s.String(), s.seeds, test.name, test.seeds)
		}
	}
}

func TestModesRejected(t *testing.T) {
	many := make([]string, addrsMax+1)
	for _, test := range []struct {
		options Options
		want    string
	}{
		{Options{URL: "redis://a", Mode: ModeRing}, "the ring has one server: name all"},
		{Options{Mode: ModeRing, Addrs: []string{"a", "a:6379"}}, "twice"},
		{Options{Mode: ModeRing, Addrs: []string{"b:1", "B:1"}}, `addrs[1] "B:1" is listed twice`},
		{Options{Mode: ModeRing, Addrs: many}, "a cluster has room for more"},
		{Options{URL: "unix:///s", Mode: ModeRing, Addrs: []string{"a"}}, "reached over TCP"},
		{Options{Mode: ModeRing, Addrs: []string{"a", "b"}, Master: "m"}, "go with mode sentinel"},
		{Options{URL: "redis://a", Mode: "Cluster"}, `mode "Cluster" is unknown`},
		{Options{Mode: ModeCluster}, "url is missing"},
		{Options{URL: "redis://a", Addrs: []string{"b"}}, "write mode cluster, mode sentinel or mode ring"},
		{Options{URL: "redis://a/1", Mode: ModeCluster}, "has only 0"},
		{Options{URL: "unix:///s", Mode: ModeCluster}, "reached over TCP"},
		{Options{URL: "redis://a", Mode: ModeCluster, Master: "m"}, "go with mode sentinel"},
		{Options{URL: "redis://a", SentinelPassword: "secret"}, "go with mode sentinel"},
		{Options{URL: "redis://a", Mode: ModeSentinel}, "master is missing"},
		{Options{URL: "redis://a", Mode: ModeSentinel, Master: "m", SentinelUsername: "u"}, "has no password"},
		{Options{URL: "redis://a", Mode: ModeSentinel, Master: "m", SentinelPassword: "secret", SentinelPasswordFile: "f"},
			"sentinel_password and sentinel_password_file are both given"},
		{Options{URL: "redis://a:1", Mode: ModeCluster, Addrs: []string{"a:1"}}, "twice"},
		{Options{Mode: ModeCluster, Addrs: []string{"redis://me:secret@a"}}, "addrs[0] is not a host:port"},
		{Options{Mode: ModeCluster, Addrs: []string{"a", ""}}, "addrs[1]"},
		{Options{Mode: ModeCluster, Addrs: []string{"a:b:c"}}, "addrs[0]"},
		{Options{Mode: ModeCluster, Addrs: []string{"a:0"}}, "addrs[0]"},
		{Options{Mode: ModeCluster, Addrs: many}, "addrs are 65"},
		{Options{URL: "redis://a?read_from_replicas=1", Mode: ModeCluster}, "limits would not hold"},
		{Options{URL: "redis://a?ReadOnly=1"}, "limits would not hold"},
		{Options{URL: "redis+cluster://a"}, "mode cluster"},
	} {
		s, err := New(test.options)
		if err == nil {
			s.Close()
			t.Errorf("%+v was accepted", test.options)
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%+v: error %q does not contain %q, or shows a password", test.options, err, test.want)
		}
	}
}

// TestNoServersAnswer: calls fail at once after discovery has failed, and succeed as soon as there
// are servers.
func TestNoServersAnswer(t *testing.T) {
	for _, mode := range []string{ModeCluster, ModeSentinel} {
		options := Options{Mode: mode, Addrs: []string{"127.0.0.1:1"}}
		if mode == ModeSentinel {
			options.Master = "m"
		}
		s := open(t, options)
		limit := limittest.New(t, "10/1m")
		for range 3 {
			err := s.Take(context.Background(), take1("rl1:{k}", limit), make([]counter.Result, 1))
			if kindOf(err) != "connection" || !strings.Contains(err.Error(), "127.0.0.1:1") {
				t.Errorf("%s: %v, want no connection to the server that was given", mode, err)
			}
		}
		calls := makeCalls(3, limit)
		s.TakeAll(context.Background(), calls)
		for i := range calls {
			if kindOf(calls[i].Err) != "connection" {
				t.Errorf("%s: call %d: %v", mode, i, calls[i].Err)
			}
		}
		if err := s.Check(context.Background()); err == nil {
			t.Errorf("%s: check finds nothing wrong", mode)
		}
		if stats := s.Stats(); stats.Servers != 0 || stats.Failures[KindConnection] < 6 {
			t.Errorf("%s: %+v", mode, stats)
		}
		s.Close()
		if err := s.Take(context.Background(), take1("rl1:{k}", limit), make([]counter.Result, 1)); kindOf(err) != "closed" {
			t.Errorf("%s: after close: %v", mode, err)
		}
	}
}

// TestCloseOfManyServersLeavesNoGoroutine closes a store with a call in flight to a server that
// hangs.
func TestCloseOfManyServersLeavesNoGoroutine(t *testing.T) {
	c, masterView, ring := redistest.StartCluster(t), redistest.StartSentinel(t), startRing(t, 3)
	_ = c.Client().Close() // the goroutines of this client must not be counted
	before := countGoroutines()
	limit := limittest.New(t, "1000/1d fixed_window")
	for _, open := range []func() *Store{
		func() *Store { return openCluster(t, c, Options{Timeout: TimeoutMax}) },
		func() *Store { return openSentinel(t, masterView, Options{Timeout: TimeoutMax}) },
		func() *Store { return openRing(t, ring, Options{Timeout: TimeoutMax}) },
	} {
		s := open()
		for i := range 20 {
			ask(t, s, append(take1(key(i), limit), take1(key(i+1), limit)...)...)
		}
		waiting := make(chan struct{})
		if s.settings.mode == ModeCluster {
			c.Nodes[0].Pause()
			defer c.Nodes[0].Resume()
		}
		go func() {
			defer close(waiting)
			for s.Take(context.Background(), take1(key(0), limit), make([]counter.Result, 1)) == nil {
			}
		}()
		s.Close()
		<-waiting
		if left := countGoroutines(); left > before {
			t.Errorf("%s: %d goroutines are left, %d were there before:\n%s", s.settings.mode, left, before, stacks())
		}
	}
}
