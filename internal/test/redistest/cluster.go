// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// The size of a cluster.
const (
	mastersOfCluster = 3
	slotsOfCluster   = 16_384
)

// Cluster is a running Redis cluster of three masters with a replica each. Its methods fail the
// test on an error. Only one goroutine may use a Cluster, except for Addrs, Client and the nodes'
// Addr, which several goroutines may use.
type Cluster struct {
	// Nodes are the three initial masters, whose slots begin at 0, 5461 and 10922, followed by
	// their replicas in the same order. Each node may be killed, paused, resumed and restarted like
	// any [Server].
	Nodes []*Server

	t      testing.TB
	ids    []string
	client Client
}

// StartCluster starts a cluster and waits until it is ready. The arguments args are further
// redis-server options for each node. The cluster stops when the test ends. A master that does not
// answer for a second is replaced by its replica within about two more seconds.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	return StartUnevenCluster(t, slotsOfCluster/mastersOfCluster, 2*slotsOfCluster/mastersOfCluster, args...)
}

// StartUnevenCluster is [StartCluster] for a cluster in which the slots of the second and the third
// master begin at the given numbers.
func StartUnevenCluster(t testing.TB, second, third int, args ...string) *Cluster {
	t.Helper()
	c, bounds := &Cluster{t: t}, [mastersOfCluster + 1]int{0, second, third, slotsOfCluster}
	for range 2 * mastersOfCluster {
		options := append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"}, args...)
		node := newTCPServer(t, freeport.WithBus(t), options...)
		node.run()
		c.Nodes = append(c.Nodes, node)
	}
	for i, node := range c.Nodes {
		node.await()
		c.ids = append(c.ids, node.replyText("cluster", "myid"))
		if i < mastersOfCluster {
			// If the masters had equal epochs when they meet, they would have to resolve these
			// conflicts one after the other.
			node.replyText("cluster", "set-config-epoch", i+1)
			node.replyText("cluster", "addslotsrange", bounds[i], bounds[i+1]-1)
		}
	}
	c.meet()
	for i, replica := range c.Nodes[mastersOfCluster:] {
		replica.replyText("cluster", "replicate", c.ids[i])
	}
	c.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), MaxRedirects: -1, DisableIdentity: true})
	t.Cleanup(func() { _ = c.client.Close() })
	c.AwaitOrder()
	return c
}

// Cluster.meet introduces every node to every other.
func (c *Cluster) meet() {
	for i, node := range c.Nodes {
		for _, other := range c.Nodes[i+1:] {
			host, port, _ := strings.Cut(other.Addr, ":")
			node.replyText("cluster", "meet", host, port)
		}
	}
	for _, node := range c.Nodes {
		eventually.Until(c.t, patience, node.Addr+" knows the others", func() bool {
			known := node.replyText("cluster", "nodes")
			return strings.Count(known, "\n") == len(c.Nodes) && !strings.Contains(known, "handshake")
		})
	}
}

// replyText sends a command, and returns the server's reply as text.
func (s *Server) replyText(args ...any) string {
	s.t.Helper()
	reply, err := s.client.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("%s: %v: %v", s.Addr, args, err)
	}
	return fmt.Sprint(reply)
}

// Addrs returns the addresses of all nodes, as host:port.
func (c *Cluster) Addrs() (addrs []string) {
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Client returns a client of the cluster, which is closed when the test ends. The client follows as
// few redirections as it can.
func (c *Cluster) Client() Client { return c.client }

// AwaitOrder waits until all running nodes that answer report the same masters for all slots, and
// until the replicas are in sync with their masters.
func (c *Cluster) AwaitOrder() {
	c.t.Helper()
	eventually.Until(c.t, patience, "the cluster is in order", func() bool {
		want := ""
		for _, node := range c.running() {
			view, ok := node.view()
			if !ok || want != "" && view != want {
				return false
			}
			want = view
		}
		return true
	})
}

func (c *Cluster) running() (nodes []*Server) {
	for _, node := range c.Nodes {
		if node.Running() && node.client.Ping(context.Background()).Err() == nil {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Server.view returns which masters have which slots according to this node. The result named ok is
// false if the node reports that the cluster is not in order.
func (s *Server) view() (view string, ok bool) {
	info, err := s.client.Do(context.Background(), "cluster", "info").Text()
	if err != nil || field(info, "cluster_state") != "ok" {
		return "", false
	}
	if r := s.info("replication"); field(r, "role") == "slave" && field(r, "master_link_status") != "up" {
		return "", false
	}
	var masters []string
	for _, node := range s.known() {
		if node.master && len(node.slots) > 0 {
			masters = append(masters, fmt.Sprint(node.id, node.slots))
		}
	}
	slices.Sort(masters)
	return strings.Join(masters, " "), true
}

// member is what a node knows about another node, or about itself.
type member struct {
	id, masterID string
	master, down bool
	slots        [][2]int // from, to
}

// Server.known returns the cluster's members according to a node.
func (s *Server) known() (members []member) {
	s.t.Helper()
	for line := range strings.Lines(s.replyText("cluster", "nodes")) {
		words := strings.Fields(line) // id address flags master ping pong epoch link slots…
		m := member{id: words[0], masterID: words[3], master: strings.Contains(words[2], "master"), down: strings.Contains(words[2], "fail")}
		for _, text := range words[8:] {
			if strings.HasPrefix(text, "[") { // a slot that is moving
				continue
			}
			from, to, two := strings.Cut(text, "-")
			if !two {
				to = from
			}
			m.slots = append(m.slots, [2]int{int(parseWhole(s.t, from)), int(parseWhole(s.t, to))})
		}
		members = append(members, m)
	}
	return members
}

// Slot returns the slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	return int(parseWhole(c.t, c.running()[0].replyText("cluster", "keyslot", key)))
}

// Master returns the node that serves a slot, according to the first node that answers.
func (c *Cluster) Master(slot int) *Server {
	c.t.Helper()
	for _, m := range c.running()[0].known() {
		for _, r := range m.slots {
			if m.master && r[0] <= slot && slot <= r[1] {
				return c.node(m.id)
			}
		}
	}
	c.t.Fatalf("nobody serves slot %d", slot)
	return nil
}

// Replica returns a running replica of a master, according to the first node that answers. If there
// is none, Replica waits, because a restarted node counts as failed until the other nodes have
// received a message from it.
func (c *Cluster) Replica(master *Server) (replica *Server) {
	c.t.Helper()
	eventually.Until(c.t, patience, master.Addr+" has a replica", func() bool {
		replica = c.replica(master)
		return replica != nil
	})
	return replica
}

// replica returns a running replica of a master, or nil if there is none.
func (c *Cluster) replica(master *Server) *Server {
	for _, m := range c.running()[0].known() {
		if !m.master && !m.down && m.masterID == c.id(master) && c.node(m.id).Running() {
			return c.node(m.id)
		}
	}
	return nil
}

func (c *Cluster) node(id string) *Server {
	c.t.Helper()
	for i, known := range c.ids {
		if known == id {
			return c.Nodes[i]
		}
	}
	c.t.Fatalf("node %s is none of the cluster's", id)
	return nil
}

func (c *Cluster) id(node *Server) string {
	c.t.Helper()
	for i, n := range c.Nodes {
		if n == node {
			return c.ids[i]
		}
	}
	c.t.Fatalf("%s is none of the cluster's", node.Addr)
	return ""
}

// AwaitFailover waits until a node other than the one named from serves a slot, and the cluster is
// in order. The caller must have killed or paused the node named from.
func (c *Cluster) AwaitFailover(slot int, from *Server) {
	c.t.Helper()
	eventually.Until(c.t, patience, fmt.Sprintf("another than %s serves slot %d", from.Addr, slot), func() bool {
		return c.Master(slot) != from
	})
	c.AwaitOrder()
}

// Failover replaces a running master by its replica in an orderly way, so that no data is lost.
func (c *Cluster) Failover(master *Server) {
	c.t.Helper()
	replica := c.Replica(master)
	replica.replyText("cluster", "failover")
	eventually.Until(c.t, patience, replica.Addr+" is a master", func() bool { return field(replica.info("replication"), "role") == "master" })
	c.AwaitOrder()
}

// ForgetItself kills a master and restarts it without its nodes.conf. The server is then a new node
// outside the cluster. The other nodes still know the old node and its slots, but without an
// address. ForgetItself waits until this is so on all of them.
func (c *Cluster) ForgetItself(master *Server) {
	c.t.Helper()
	id := c.id(master)
	master.Kill()
	if err := os.Remove(filepath.Join(master.dir, "nodes.conf")); err != nil {
		c.t.Fatal(err)
	}
	master.Restart()
	eventually.Until(c.t, patience, "the others have lost "+master.Addr, func() bool {
		for _, node := range c.Nodes {
			if node != master && !strings.Contains(node.replyText("cluster", "nodes"), id+" :0@0 master,noaddr") {
				return false
			}
		}
		return true
	})
}

// BeginMove begins to move a slot to another master. Until [Cluster.EndMove], the old master serves
// the keys that it still has. To a command with other keys it answers ASK, or TRYAGAIN if it has
// some of the keys.
func (c *Cluster) BeginMove(slot int, to *Server) {
	c.t.Helper()
	from := c.Master(slot)
	to.replyText("cluster", "setslot", slot, "importing", c.id(from))
	from.replyText("cluster", "setslot", slot, "migrating", c.id(to))
}

// MoveKeys moves at most n keys of a slot whose move has begun, and returns how many keys it moved.
func (c *Cluster) MoveKeys(slot int, to *Server, n int) int {
	c.t.Helper()
	from := c.Master(slot)
	keys, err := from.client.ClusterGetKeysInSlot(context.Background(), slot, n).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	host, port, _ := strings.Cut(to.Addr, ":")
	for _, key := range keys {
		from.replyText("migrate", host, port, key, 0, int(patience.Milliseconds()))
	}
	return len(keys)
}

// EndMove ends the move of a slot whose keys have all been moved. From then on the old master
// answers MOVED.
func (c *Cluster) EndMove(slot int, to *Server) {
	c.t.Helper()
	for _, node := range []*Server{to, c.Master(slot)} {
		node.replyText("cluster", "setslot", slot, "node", c.id(to))
	}
	c.AwaitOrder()
}

// MoveSlot moves a slot with its keys to another master.
func (c *Cluster) MoveSlot(slot int, to *Server) {
	c.t.Helper()
	c.BeginMove(slot, to)
	for c.MoveKeys(slot, to, 100) > 0 {
	}
	c.EndMove(slot, to)
}

// Calls returns how many times all nodes that answer have executed a command, in total.
func (c *Cluster) Calls(command string) (calls int64) {
	c.t.Helper()
	for _, node := range c.running() {
		calls += node.Calls(command)
	}
	return calls
}
