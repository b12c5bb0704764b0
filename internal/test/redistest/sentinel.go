// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// sentinelsOf is the number of sentinels that watch a master, and quorum is how many of them must
// agree that the master is down.
const (
	sentinelsOf = 3
	quorum      = 2
)

// Sentinel is a running master with a replica, and three sentinels that watch the master. Its
// methods fail the test on an error. Only one goroutine may use a Sentinel, except for Name, Addrs
// and the servers' Addr, which several goroutines may use.
type Sentinel struct {
	// Name is the sentinels' name for the master.
	Name string
	// Servers are the initial master and its replica, and Sentinels are the sentinels that watch
	// them. Each of these may be killed, paused, resumed and restarted like any [Server]. A master
	// that was replaced becomes a replica when it is restarted.
	Servers, Sentinels []*Server

	t testing.TB
}

// StartSentinel starts all servers, and waits until the sentinels know one another. The arguments
// args are further redis-server options for the master and the replica. The servers stop when the
// test ends. A master that does not answer for a second is replaced within about two more seconds,
// or four if it has just replaced another master.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{Name: "penstock", t: t}
	options := append([]string{"--repl-diskless-sync-delay", "0", "--repl-timeout", "5"}, args...)
	master := newTCPServer(t, freeport.Address(t), options...)
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := newTCPServer(t, freeport.Address(t), append(options, "--replicaof", host+" "+port)...)
	s.Servers = []*Server{master, replica}
	for _, server := range s.Servers {
		server.run()
		server.await()
	}
	s.awaitReplica(replica)
	for range sentinelsOf {
		sentinel := newTCPServer(t, freeport.Address(t))
		sentinel.config = filepath.Join(sentinel.dir, "sentinel.conf")
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	s.runSentinels(master)
	return s
}

// runSentinels starts all sentinels with only the master's address, and waits until they know one
// another.
func (s *Sentinel) runSentinels(master *Server) {
	s.t.Helper()
	for _, sentinel := range s.Sentinels {
		if err := os.WriteFile(sentinel.config, []byte(s.settings(sentinel, master.Addr)), 0o600); err != nil {
			s.t.Fatal(err)
		}
		sentinel.run()
	}
	for _, sentinel := range s.Sentinels {
		sentinel.await()
		// By default, sentinels query servers every ten seconds, and publish to one another every
		// two seconds. This command shortens the periods. An older Redis does not have it, so its
		// error is ignored. Even shorter periods would not work: sentinels treat an unexpected
		// master as a stray one after four publish periods, and the leading sentinel, which pings
		// once a second, elects only a replica that answered within the last five ping periods.
		_ = sentinel.client.Do(context.Background(), "sentinel", "debug", "info-period", 200, "publish-period", 800,
			"ask-period", 100, "ping-period", 500).Err()
	}
	s.AwaitOrder()
}

// Forget restarts all sentinels as if they had lost their files. They then watch the current
// master, and know of no failover. Both servers must be running.
func (s *Sentinel) Forget() {
	s.t.Helper()
	master := s.Master()
	for _, sentinel := range s.Sentinels {
		if sentinel.Running() {
			sentinel.Kill()
		}
	}
	s.awaitSilence(master)
	s.runSentinels(master)
}

// awaitSilence waits until the servers have delivered all messages of the killed sentinels.
// Otherwise a new sentinel could learn of the failovers from these messages.
func (s *Sentinel) awaitSilence(master *Server) {
	s.t.Helper()
	replica := s.other(master)
	eventually.Until(s.t, patience, "nothing is left of the sentinels' talk", func() bool {
		for _, server := range s.Servers {
			clients, err := server.client.ClientList(context.Background()).Result()
			if err != nil || strings.Contains(clients, "name=sentinel-") {
				return false
			}
		}
		return isReplicated(master, replica)
	})
}

// isReplicated reports whether the replica has all writes of its master.
func isReplicated(master, replica *Server) bool {
	return field(master.info("replication"), "master_repl_offset") == field(replica.info("replication"), "slave_repl_offset")
}

// AwaitReplicated waits until the replica has all writes of the master. A failover then loses no
// writes.
func (s *Sentinel) AwaitReplicated() {
	s.t.Helper()
	master := s.Master()
	replica := s.other(master)
	eventually.Until(s.t, patience, replica.Addr+" has all writes", func() bool { return isReplicated(master, replica) })
}

// Sentinel.settings returns the configuration file of a sentinel.
func (s *Sentinel) settings(sentinel *Server, master string) string {
	host, port, _ := net.SplitHostPort(master)
	_, own, _ := net.SplitHostPort(sentinel.Addr)
	return fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nlogfile %s\n", own, sentinel.dir, filepath.Join(sentinel.dir, "log")) +
		fmt.Sprintf("sentinel monitor %s %s %s %d\n", s.Name, host, port, quorum) +
		fmt.Sprintf("sentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 2000\n", s.Name, s.Name)
}

// awaitReplica waits until a server is a replica in sync with its master.
func (s *Sentinel) awaitReplica(replica *Server) {
	s.t.Helper()
	eventually.Until(s.t, patience, replica.Addr+" replicates", func() bool {
		info := replica.info("replication")
		return field(info, "role") == "slave" && field(info, "master_link_status") == "up"
	})
}

// Addrs returns the addresses of the sentinels, as host:port.
func (s *Sentinel) Addrs() (addrs []string) {
	for _, sentinel := range s.Sentinels {
		addrs = append(addrs, sentinel.Addr)
	}
	return addrs
}

// AwaitOrder waits until all running sentinels agree on the master and know one another. If the
// master and a replica run, the sentinels must also know a usable replica.
func (s *Sentinel) AwaitOrder() {
	s.t.Helper()
	both := s.Servers[0].Running() && s.Servers[1].Running()
	eventually.Until(s.t, patience, "the sentinels are in order", func() bool {
		want := ""
		for _, sentinel := range s.running() {
			view, err := sentinel.client.Do(context.Background(), "sentinel", "master", s.Name).Result()
			if err != nil {
				return false
			}
			known := readPairs(view)
			master := known["ip"] + ":" + known["port"]
			if want != "" && master != want || known["flags"] != "master" || known["num-other-sentinels"] != fmt.Sprint(sentinelsOf-1) {
				return false
			}
			if both && !s.replicaSeen(sentinel) {
				return false
			}
			want = master
		}
		return true
	})
	if both {
		s.awaitReplica(s.other(s.Master()))
	}
}

// replicaSeen reports whether a sentinel has found a usable replica.
func (s *Sentinel) replicaSeen(sentinel *Server) bool {
	view, err := sentinel.client.Do(context.Background(), "sentinel", "replicas", s.Name).Slice()
	if err != nil || len(view) != 1 {
		return false
	}
	known := readPairs(view[0])
	return known["flags"] == "slave" && known["master-link-status"] == "ok"
}

func (s *Sentinel) running() (sentinels []*Server) {
	for _, sentinel := range s.Sentinels {
		if sentinel.Running() && sentinel.client.Ping(context.Background()).Err() == nil {
			sentinels = append(sentinels, sentinel)
		}
	}
	return sentinels
}

// readPairs reads a reply that consists of names and values. With RESP3, go-redis returns it as a
// map.
func readPairs(reply any) map[string]string {
	known := map[string]string{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			known[fmt.Sprint(name)] = fmt.Sprint(value)
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			known[fmt.Sprint(reply[i])] = fmt.Sprint(reply[i+1])
		}
	}
	return known
}

// Master returns the master, according to the first sentinel that answers.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	addr, err := s.running()[0].client.Do(context.Background(), "sentinel", "get-master-addr-by-name", s.Name).StringSlice()
	if err != nil || len(addr) != 2 {
		s.t.Fatalf("the sentinels name no master: %v %v", addr, err)
	}
	for _, server := range s.Servers {
		if server.Addr == net.JoinHostPort(addr[0], addr[1]) {
			return server
		}
	}
	s.t.Fatalf("the master %v is none of ours", addr)
	return nil
}

func (s *Sentinel) other(server *Server) *Server {
	if server == s.Servers[0] {
		return s.Servers[1]
	}
	return s.Servers[0]
}

// AwaitFailover waits until the sentinels name as the master a server other than the one named
// from, and that server has the role of a master.
func (s *Sentinel) AwaitFailover(from *Server) {
	s.t.Helper()
	to := s.other(from)
	eventually.Until(s.t, patience, to.Addr+" is the master", func() bool {
		return s.Master() == to && field(to.info("replication"), "role") == "master"
	})
}

// Failover makes the replica the master, and waits until the old master is its replica. It may
// order the failover several times: on a busy machine the sentinels can give up, and they do not
// retry by themselves while the master works.
func (s *Sentinel) Failover() {
	s.t.Helper()
	from := s.Master()
	to := s.other(from)
	ordered := time.Time{}
	eventually.Until(s.t, 2*patience, to.Addr+" is the master by order", func() bool {
		if s.Master() == to && field(to.info("replication"), "role") == "master" {
			return true
		}
		if time.Since(ordered) > orderAgain {
			ordered = time.Now()
			// the command fails if a failover is under way
			_ = s.running()[0].client.Do(context.Background(), "sentinel", "failover", s.Name).Err()
		}
		return false
	})
	s.AwaitOrder()
}

// orderAgain is how long Failover waits for an ordered failover before it orders the failover
// again. It is longer than failover-timeout.
const orderAgain = 3 * time.Second
