// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// infoOf reads the one server of a store.
func infoOf(t *testing.T, s *Store, now time.Time) ServerInfo {
	t.Helper()
	infos, beyond := s.ServerInfos(now)
	if len(infos) != 1 || beyond != 0 {
		t.Fatalf("%d servers and %d beyond, want one", len(infos), beyond)
	}
	return infos[0]
}

// TestServerInfoIsThatOfTheServer changes settings of a server, and compares the reported figures.
func TestServerInfoIsThatOfTheServer(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "config", "set", "maxmemory", "64mb", "maxclients", "777")
	configure(t, server, "set", "k", "v")
	configure(t, server, "get", "k")
	s := open(t, Options{URL: server.URL()})
	info := infoOf(t, s, time.Now())
	if !info.Up || info.Addr != server.Addr {
		t.Errorf("up %v, address %q", info.Up, info.Addr)
	}
	for figure, want := range map[Figure]float64{MemoryMax: 64 << 20, ClientsMax: 777, RejectedConnections: 0, EvictedKeys: 0, Replicas: 0} {
		if got := info.Figures[figure]; got != want {
			t.Errorf("figure %d is %v, want %v", figure, got, want)
		}
	}
	for _, figure := range []Figure{MemoryUsed, Fragmentation, Clients, Hits} {
		if got := info.Figures[figure]; !(got > 0) {
			t.Errorf("figure %d is %v", figure, got)
		}
	}
	for _, figure := range []Figure{ReplicaLagBytes, ReplicaLagSeconds, ClusterOK, SlotsAssigned} {
		if got := info.Figures[figure]; !math.IsNaN(got) {
			t.Errorf("figure %d of a single server is %v", figure, got)
		}
	}
}

// TestServersAreReadOnceInAWhile: however often the metrics are read, the server is read at most
// once in five seconds, and never if the metrics are not read.
func TestServersAreReadOnceInAWhile(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	callUntilAnswered(t, s)
	eventually.Until(t, 20*time.Second, "the store has checked the server", func() bool { return server.Calls("info") > 0 })
	before := server.Calls("info") // each call of Calls is itself counted afterwards
	now := time.Now()
	for range 50 {
		infoOf(t, s, now)
		infoOf(t, s, now.Add(InfoEvery-1))
	}
	infoOf(t, s, now.Add(InfoEvery))
	if asked := server.Calls("info") - before - 1; asked != 2 {
		t.Errorf("the server was asked %d times, want 2", asked)
	}
}

// TestServerInfoOfAServerThatIsAway: a server that does not answer is reported as down, with
// unknown figures.
func TestServerInfoOfAServerThatIsAway(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	now := time.Now()
	if !infoOf(t, s, now).Up {
		t.Fatal("the server is down from the start")
	}
	server.Pause()
	info := infoOf(t, s, now.Add(InfoEvery))
	server.Resume()
	if info.Up || !math.IsNaN(info.Figures[MemoryUsed]) {
		t.Errorf("while it hangs: up %v, memory %v", info.Up, info.Figures[MemoryUsed])
	}
	server.Kill()
	if infoOf(t, s, now.Add(2*InfoEvery)).Up {
		t.Error("up after it was killed")
	}
	server.Restart()
	if !infoOf(t, s, now.Add(3*InfoEvery)).Up {
		t.Error("down after it was restarted")
	}
}

// TestServerInfoWithoutTheRight: if the user may not run INFO, the server is reported as up, its
// figures are unknown, and the log says so once.
func TestServerInfoWithoutTheRight(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, append(append([]any{"acl", "setuser", "me", "on", ">secret"}, leastPrivilege()...), "-info")...)
	log := &eventually.Journal{}
	s := open(t, Options{URL: server.URL(), Username: "me", Password: "secret", Logger: log.Logger()})
	now := time.Now()
	for i := range 3 {
		info := infoOf(t, s, now.Add(time.Duration(i)*InfoEvery))
		if !info.Up || !math.IsNaN(info.Figures[MemoryUsed]) {
			t.Errorf("up %v, memory %v", info.Up, info.Figures[MemoryUsed])
		}
	}
	if said := strings.Count(log.String(), "+info"); said != 1 {
		t.Errorf("the log says it %d times:\n%s", said, log.String())
	}
}

// TestServerInfoInACluster: each master reports the slots, and the lag of its replica.
func TestServerInfoInACluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	s := open(t, Options{URL: cluster.Nodes[0].URL(), Mode: ModeCluster, Timeout: TimeoutMax})
	now := time.Now()
	eventually.Until(t, 30*time.Second, "three masters report a whole cluster and their replicas", func() bool {
		now = now.Add(InfoEvery)
		infos, _ := s.ServerInfos(now)
		for _, info := range infos {
			f := &info.Figures
			if f[ClusterOK] != 1 || f[SlotsAssigned] != slotCount || f[SlotsOK] != slotCount || f[SlotsFailed] != 0 ||
				f[Replicas] != 1 || !(f[ReplicaLagBytes] >= 0) || !(f[ReplicaLagSeconds] >= 0) {
				return false
			}
		}
		return len(infos) == 3
	})
}

// TestServerInfoOfManyServers: the servers beyond the bound are only counted. One server takes the
// places of all of them, because options name at most 64 addresses.
func TestServerInfoOfManyServers(t *testing.T) {
	server := redistest.StartTCP(t)
	s := open(t, Options{URL: server.URL()})
	many := &ring{}
	for range InfoServersMax + 3 {
		many.nodes = append(many.nodes, s.only.Load())
	}
	s.ring = many
	infos, beyond := s.ServerInfos(time.Now())
	s.ring = nil
	if len(infos) != InfoServersMax || beyond != 3 {
		t.Errorf("%d servers and %d beyond", len(infos), beyond)
	}
}

// TestServerInfoAfterClose: nothing is read from a store that is closed.
func TestServerInfoAfterClose(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	_ = s.Close()
	if infos, _ := s.ServerInfos(time.Now()); len(infos) != 0 {
		t.Errorf("%d servers", len(infos))
	}
}

// FuzzServerInfo: whatever a server answers, a figure is unknown or a number that a metric can
// show.
func FuzzServerInfo(f *testing.F) {
	server := redistest.Start(f)
	text, err := server.Client().Info(context.Background()).Result()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{text, "maxclients:-1\r\n", "used_memory:NaN\n", "used_memory:1e999\n", "used_memory:0x1p99", ":", "\n:\n",
		"master_repl_offset:5\r\nslave0:ip=a,port=1,state=online,offset=9,lag=1\r\nslave1:state=online,offset=,lag=-4\r\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var info ServerInfo
		for i := range info.Figures {
			info.Figures[i] = math.NaN()
		}
		info.parse(text)
		for figure, value := range info.Figures {
			if !math.IsNaN(value) && !(value >= 0 && value <= infoFigureMax) {
				t.Errorf("figure %d is %v", figure, value)
			}
		}
	})
}

// TestReplicaLag: of several replicas, the one that lags most is reported; a replica that is not
// online is ignored.
func TestReplicaLag(t *testing.T) {
	var info ServerInfo
	info.parse("connected_slaves:3\r\n" +
		"slave0:ip=10.0.0.1,port=6379,state=online,offset=900,lag=0\r\n" +
		"slave1:ip=10.0.0.2,port=6379,state=online,offset=400,lag=7\r\n" +
		"slave2:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=99\r\n" +
		"master_repl_offset:1000\r\n")
	if f := info.Figures; f[ReplicaLagBytes] != 600 || f[ReplicaLagSeconds] != 7 || f[Replicas] != 3 {
		t.Errorf("%v bytes and %v s behind, %v replicas", f[ReplicaLagBytes], f[ReplicaLagSeconds], f[Replicas])
	}
}
