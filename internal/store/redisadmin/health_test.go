// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// patience bounds the time that servers take on a busy machine.
const patience = 20 * time.Second

// connect connects to an address as a command does. The connection is closed when the test ends.
func connect(t *testing.T, o Options) *Deployment {
	t.Helper()
	d, err := Connect(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// optionsFor returns options for an address, with a timeout that is long enough for a busy machine.
func optionsFor(url string) Options {
	return Options{Redis: redisstore.Options{URL: url}, Timeout: patience}
}

// healthText returns the printed state of servers, and whether there is no problem.
func healthText(t *testing.T, d *Deployment) (text string, ok bool) {
	t.Helper()
	var out strings.Builder
	ok, err := d.Health().Print(&out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("health:\n%s", out.String())
	return out.String(), ok
}

// set changes a server's setting, as an operator would.
func set(t *testing.T, s *redistest.Server, name, value string) {
	t.Helper()
	if err := s.Client().ConfigSet(context.Background(), name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("nothing says %q in:\n%s", part, text)
		}
	}
}

func TestHealthOfOneServer(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "64mb")
	if err := s.Client().Set(context.Background(), "k", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	d := connect(t, optionsFor(s.URL()))
	text, ok := healthText(t, d)
	if !ok || d.Mode != ModeSingle {
		t.Errorf("ok %v, mode %v", ok, d.Mode)
	}
	contains(t, text, "one server", s.Addr, "master", "of 67.1 MB", "ok")
	if d.Health().Nodes[0].Keys != "1" {
		t.Errorf("keys: %+v", d.Health().Nodes)
	}
}

func TestHealthOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	d := connect(t, optionsFor(c.Nodes[4].URL())) // a replica is enough for this case
	text, ok := healthText(t, d)
	if !ok || d.Mode != ModeCluster || len(d.Nodes) != 6 {
		t.Errorf("ok %v, mode %v, %d nodes", ok, d.Mode, len(d.Nodes))
	}
	contains(t, text, "a cluster of 3 masters and 3 replicas; 16384 of 16384 slots are served", "0-5460", "10922-16383",
		"replica of "+c.Nodes[0].Addr, " bytes, ")
	for i, n := range d.Nodes {
		if n.Master != (i%2 == 0) {
			t.Errorf("node %d, %s: master is %v; a master is followed by its replica", i, n.Addr, n.Master)
		}
	}

	killed := c.Nodes[0]
	c.Replica(killed).Kill() // no replica can replace the master
	killed.Kill()
	eventually.Until(t, patience, "the cluster notices", func() bool {
		d, err := Connect(context.Background(), optionsFor(c.Nodes[4].URL()))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		return slices.ContainsFunc(d.Nodes, func(n *Node) bool { return n.Addr == killed.Addr && n.down() })
	})
	text, ok = healthText(t, connect(t, optionsFor(c.Nodes[4].URL())))
	if ok {
		t.Error("a cluster without two of its nodes is in order")
	}
	contains(t, text, "10923 of 16384", "down", "wrong: no server has the slots 0-5460", "redis-cli --cluster fix 127.0.0.1:", killed.Addr+" cannot be reached")
}

func TestHealthBySentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	d := connect(t, optionsFor(s.Sentinels[1].URL()))
	text, ok := healthText(t, d)
	if !ok || d.Mode != ModeSentinel || d.Name != s.Name || len(d.Nodes) != 2 || len(d.Sentinels) != 3 {
		t.Errorf("ok %v, mode %v, name %q, %d nodes, %d sentinels", ok, d.Mode, d.Name, len(d.Nodes), len(d.Sentinels))
	}
	contains(t, text, `"penstock": 1 master and 1 replica, watched by 3 sentinels`, "replica of "+s.Servers[0].Addr, " bytes, ")
	s.Servers[1].Kill()
	if text, ok = healthText(t, connect(t, optionsFor(s.Sentinels[1].URL()))); ok {
		t.Error("a master without its replica is in order")
	}
	contains(t, text, "wrong: "+s.Servers[1].Addr+" cannot be reached")
	o := optionsFor(s.Sentinels[0].URL())
	o.Master = "other"
	if _, err := Connect(context.Background(), o); err == nil || !strings.Contains(err.Error(), `watches no master "other"; there are: ["penstock"]`) {
		t.Errorf("a name that is none: %v", err)
	}
}

// TestSentinelsWithoutUser: servers that need a user are discovered by sentinels that have no
// users.
func TestSentinelsWithoutUser(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	for _, server := range s.Servers {
		if err := server.Client().Do(context.Background(), "acl", "setuser", "ops", "on", ">secret-secret", "+@all", "~*").Err(); err != nil {
			t.Fatal(err)
		}
	}
	d := connect(t, optionsFor("redis://ops:secret-secret@"+s.Sentinels[0].Addr))
	if len(d.Nodes) != 2 || d.Nodes[0].Err != nil || d.Nodes[1].Err != nil || d.Sentinels[2].Err != nil {
		t.Errorf("nodes: %v", d.Health().Wrong)
	}
}

func TestConnectSaysWhatToDo(t *testing.T) {
	s := redistest.Start(t)
	set(t, s, "requirepass", "secret-secret")
	nobody := freeport.Address(t)
	wrongPassword := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(wrongPassword, []byte("mistyped"), 0o600); err != nil {
		t.Fatal(err)
	}
	single := redistest.Start(t)
	for name, c := range map[string]struct {
		options Options
		want    []string
	}{
		"nobody there":          {optionsFor("redis://" + nobody), []string{nobody + " cannot be reached", "start it, or"}},
		"no password":           {optionsFor(s.URL()), []string{"wants a password", "--redis-password-file FILE"}},
		"wrong password":        {Options{Redis: redisstore.Options{URL: s.URL(), PasswordFile: wrongPassword}}, []string{"WRONGPASS", "check the user and the password: redis-cli -s "}},
		"no URL":                {optionsFor("localhost"), []string{"url has the scheme"}},
		"sentinels only":        {Options{Redis: redisstore.Options{URL: single.URL()}, Master: "m"}, []string{`--master "m" goes with sentinels`, "leave it out"}},
		"a user not known":      {Options{Redis: redisstore.Options{URL: single.URL(), Username: "ops", Password: "secret-secret"}}, []string{"WRONGPASS"}},
		"a certificate in vain": {Options{Redis: redisstore.Options{URL: single.URL(), CAFile: "x"}}, []string{"write rediss://"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Connect(context.Background(), c.options)
			if err == nil {
				_ = d.Close()
				t.Fatal("no error")
			}
			t.Log(err)
			contains(t, err.Error(), c.want...)
			if strings.Contains(err.Error(), "secret-secret") || strings.Contains(err.Error(), "mistyped") {
				t.Error("the password is in the error")
			}
		})
	}
}

func TestAnnounced(t *testing.T) {
	for text, want := range map[string]string{"10.0.0.1:7001@17001": "10.0.0.1:7001", "10.0.0.1:7001@17001,redis.internal": "10.0.0.1:7001",
		"::1:7001@17001": "[::1]:7001", ":7001@17001": "127.0.0.1:7001", "2001:db8::7:7001": "[2001:db8::7]:7001"} {
		if got := parseAnnounced(text, "127.0.0.1:7005"); got != want {
			t.Errorf("%q is at %s, want %s", text, got, want)
		}
	}
}

// TestReplicaWithoutMaster: no number of seconds is reported for a replica that was never linked.
func TestReplicaWithoutMaster(t *testing.T) {
	nobody := freeport.Address(t)
	s := redistest.Start(t, "--replicaof", strings.ReplaceAll(nobody, ":", " "))
	text, ok := healthText(t, connect(t, optionsFor(s.URL())))
	if ok || strings.Contains(text, "-1") {
		t.Errorf("in order: %v, or a number that is none in:\n%s", ok, text)
	}
	contains(t, text, "replica of "+nobody, "not linked yet", "has no link to its master, not linked yet; see its log")
}

// TestHealthBeforeSlotsAreGivenOut: health reports that no slot is served, even with a user that is
// limited to CLUSTER SLOTS.
func TestHealthBeforeSlotsAreGivenOut(t *testing.T) {
	t.Parallel()
	s := redistest.StartAlone(t)
	text, ok := healthText(t, connect(t, limiterOptions(t, s, redisstore.ClusterPrivilege)))
	if ok {
		t.Error("a cluster without slots is in order")
	}
	contains(t, text, "0 of 16384 slots are served", s.Addr, "wrong: no server has the slots 0-16383")
}
