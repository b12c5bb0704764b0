// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestNetworksStayReadable tests that the records of networks never become too long to be read. If
// they became too long, a process that starts later would block none of them.
func TestNetworksStayReadable(t *testing.T) {
	source := inRedis(t, redistest.Start(t).URL())
	reason := strings.Repeat("r", 400)
	texts := map[string][]byte{}
	fill := func(n int) error {
		for i := len(texts); i < n; i++ {
			texts[fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)] = (&directory.Record{Block: &directory.Mark{Reason: reason}}).Text()
		}
		return source.FillNetworks(t.Context(), texts)
	}
	read := func(n int) {
		t.Helper()
		if all, err := source.Networks(t.Context()); err != nil || len(all) != n {
			t.Fatalf("%d networks are read, %v; want %d", len(all), err, n)
		}
	}
	const some = 2400
	if err := fill(some); err != nil {
		t.Fatal(err)
	}
	read(some)
	if err := fill(some + 200); !errors.Is(err, directory.ErrEdit) {
		t.Errorf("too many are written: %v", err)
	}
	read(some)
	editor := directory.Editor{Source: source}
	block := func(i int) error {
		_, err := editor.Apply(context.Background(), directory.Edit{Client: fmt.Sprintf("ip:192.0.%d.%d", i>>8, i&255), Action: directory.ActionBlock,
			Actor: "tester", Reason: reason})
		return err
	}
	added, err := 0, error(nil)
	for ; added < 100; added++ {
		if err = block(added); err != nil {
			break
		}
	}
	if !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), "forget some") {
		t.Errorf("after %d more blocks: %v", added, err)
	}
	read(some + added)
	if _, err := editor.Apply(t.Context(), directory.Edit{Client: "ip:192.0.0.0", Action: directory.ActionForget, Actor: "tester", Reason: "a test"}); err != nil {
		t.Error(err)
	}
	read(some + added - 1)
}

// TestGarbledNetworks lets another program write to the key of networks. The networks that a
// process remembers stay blocked, and the failure is counted and logged. A process that starts
// afterwards learns of changes from the history. If only one of the records is invalid, the other
// records have effect.
func TestGarbledNetworks(t *testing.T) {
	const key = "rl1:~networks:{~directory}"
	server := redistest.Start(t)
	source, log, addr := inRedis(t, server.URL()), new(eventually.Journal), netip.MustParseAddr("192.0.2.7")
	edit(t, source, directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock})
	d := open(t, directory.Options{Source: source, Logger: log.Logger()})
	write := func(garbage any) {
		t.Helper()
		// This is one step, because a read without the key would find that the networks are gone.
		if _, err := server.Client().TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Del(t.Context(), key)
			switch garbage := garbage.(type) {
			case string:
				p.Set(t.Context(), key, garbage, 0)
			case []any:
				p.LPush(t.Context(), key, garbage...)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		d.ReadNetworks(t.Context())
	}
	for i, garbage := range []any{"garbage", "[]", `"{}"`, []any{"x"}} {
		if write(garbage); d.Figures().Bad.Load() < uint64(i+1) {
			t.Errorf("%v: %d are bad", garbage, d.Figures().Bad.Load())
		}
		if r := d.FindAddr(addr, now()); r == nil || !r.Blocked {
			t.Errorf("%v: the blocked network has the record %+v", garbage, r)
		}
	}
	if text := log.String(); !strings.Contains(text, "has no force") || !strings.Contains(text, key) {
		t.Errorf("the log is %q", text)
	}
	later := &looks{Source: source}
	open(t, directory.Options{Source: later})
	eventually.Until(t, 20*time.Second, "the history is read", func() bool { return later.n.Load() > 0 })
	write(`{"192.0.2.0/24": {"v": 9, "block": {}}, "198.51.100.0/24": {"block": {}}, "nonsense": {}, "203.0.113.0/24": 5}`)
	for text, want := range map[string]bool{"192.0.2.7": false, "198.51.100.7": true, "203.0.113.7": false} {
		if r := d.FindAddr(netip.MustParseAddr(text), now()); (r != nil && r.Blocked) != want {
			t.Errorf("%s has the record %+v, want blocked %v", text, r, want)
		}
	}
}

// looks is a source that counts how often its history is read.
type looks struct {
	directory.Source
	n atomic.Int64
}

func (l *looks) Changes(ctx context.Context, after string) (directory.Changes, error) {
	l.n.Add(1)
	return l.Source.Changes(ctx, after)
}

// TestRecordsOfNetworksOfSeveralClients tests that a record says whether its network has several
// clients, even after a part of the record has ended.
func TestRecordsOfNetworksOfSeveralClients(t *testing.T) {
	source, texts := inRedis(t, redistest.Start(t).URL()), map[string][]byte{}
	want := map[string]bool{"192.0.2.0/24": true, "198.51.100.7": false, "2001:db8:1::/48": true, "2001:db8:2::/64": false, "2001:db8:3::1": false}
	for name := range want {
		texts[name] = (&directory.Record{Tier: "gold", Exempt: &directory.Mark{Until: time.Now().Add(time.Hour)}}).Text()
	}
	if err := source.FillNetworks(t.Context(), texts); err != nil {
		t.Fatal(err)
	}
	d := open(t, directory.Options{Source: source})
	d.ReadNetworks(t.Context())
	for name, wide := range want {
		addr, _, _ := strings.Cut(name, "/")
		for _, at := range []time.Time{time.Now(), time.Now().Add(2 * time.Hour)} {
			if r := d.FindAddr(netip.MustParseAddr(addr), counter.Micros(at.UnixMicro())); r == nil || r.Network != wide || r.Tier != "gold" {
				t.Errorf("%s: %+v, want a network: %v", name, r, wide)
			}
		}
	}
}
