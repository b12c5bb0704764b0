// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// sentinelOptions returns options for sentinels. The users of the servers and of the sentinels have
// only the rights in docs/guides/redis.md.
func sentinelOptions(t *testing.T, s *redistest.Sentinel, more string) Options {
	t.Helper()
	for _, server := range s.Servers {
		limiterOptions(t, server, redisstore.SentinelPrivilege)
	}
	for _, sentinel := range s.Sentinels {
		args := []any{"acl", "setuser", "watcher", "reset", "on", ">other-secret"}
		for word := range strings.FieldsSeq(redisstore.WatchPrivilege + " " + more) {
			args = append(args, word)
		}
		if err := sentinel.Client().Do(context.Background(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return Options{Master: s.Name, Timeout: patience, Redis: redisstore.Options{Mode: redisstore.ModeSentinel, Addrs: s.Addrs(), Master: s.Name,
		Username: "limiter", Password: "secret-secret", SentinelUsername: "watcher", SentinelPassword: "other-secret"}}
}

// TestSentinelsOfLeastPrivilege: the store's rights on the sentinels are enough to inspect every
// server, and the output states what could not be read from the sentinels.
func TestSentinelsOfLeastPrivilege(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	o := sentinelOptions(t, s, "")
	d := connect(t, o)
	text, ok := healthText(t, d)
	if !ok || strings.Contains(text, "note: ") || len(d.Nodes) != 2 || len(d.Sentinels) != 3 {
		t.Errorf("ok %v, %d nodes, %d sentinels", ok, len(d.Nodes), len(d.Sentinels))
	}
	contains(t, text, `"penstock": 1 master and 1 replica, watched by 3 sentinels`, "replica of "+s.Servers[0].Addr, " bytes, ")

	found, ok := examined(t, o)
	if f := found["sentinel"]; !ok || f.Level != LevelNote || !strings.Contains(f.Text, `does not tell the user "watcher"; let it`) {
		t.Errorf("ok %v, %+v", ok, f)
	}
	if f := found[s.Servers[1].Addr+" (replica) rights"]; f.Level != LevelOK || f.Text == "" {
		t.Errorf("the replica: %+v", f)
	}
	limit, err := counter.ParseLimit("5/60s")
	if err != nil {
		t.Fatal(err)
	}
	key := "rl1:shop:api:{ip:192.0.2.7}:60s:sw"
	if _, err := d.Inspect(context.Background(), key, &counter.Check{Key: []byte(key), Limit: &limit, Cost: 1}); err != nil {
		t.Errorf("inspect: %v", err)
	}

	obeyAll(t, found, s.Sentinels)
	if found, ok := examined(t, o); !ok || found["sentinel"].Level != LevelOK {
		t.Errorf("with the right that was named: %+v", found["sentinel"])
	}
}

// obeyAll runs the doctor's commands on each sentinel.
func obeyAll(t *testing.T, found map[string]Finding, sentinels []*redistest.Server) {
	t.Helper()
	command := found["sentinel"].Do[0]
	_, words, ok := strings.Cut(command, "ACL SETUSER ")
	if !ok {
		t.Fatalf("it says to do %q", command)
	}
	for _, sentinel := range sentinels {
		_, port, _ := net.SplitHostPort(sentinel.Addr)
		if out := shell(t, "redis-cli -p "+port+" ACL SETUSER "+words); !strings.HasPrefix(out, "OK") {
			t.Errorf("%s: %s", command, out)
		}
	}
}

// TestSentinelsOfLeastPrivilegeKnowMore: the output names the information that the user may not
// read, and the right that is required for it.
func TestSentinelsOfLeastPrivilegeKnowMore(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	o := sentinelOptions(t, s, "")
	o.Redis.Addrs = o.Redis.Addrs[:1]
	text, ok := healthText(t, connect(t, o))
	if !ok {
		t.Error("sentinels that were not named are wrong")
	}
	contains(t, text, "watched by 3 sentinels", "note: the sentinel "+s.Sentinels[0].Addr+" knows of 2 others", "+sentinel|sentinels")

	s.Servers[1].Kill()
	eventually.Until(t, patience, "the master notices", func() bool {
		text, ok = healthText(t, connect(t, o))
		return !ok
	})
	contains(t, text, "wrong: the sentinel "+s.Sentinels[0].Addr+" knows of 1 replica, and 0 follow the master", "'+sentinel|replicas'")
	s.Servers[0].Kill()
	text, _ = healthText(t, connect(t, o))
	contains(t, text, "note: the sentinel "+s.Sentinels[0].Addr+" knows of 1 replica, and does not tell", "wrong: "+s.Servers[0].Addr+" cannot be reached")

	o.Master, o.Redis.Master = "other", "other"
	if d, err := Connect(context.Background(), o); err == nil || !strings.Contains(err.Error(), `watches no master "other"; see which it does: `) {
		t.Errorf("a name that is none: %v, %v", d, err)
	}
}
