// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// The size and the timing of a trial cluster.
const (
	trialMasters = 3
	trialNodes   = 2 * trialMasters
	// busAhead is the distance from a node's port to its cluster bus port.
	busAhead = 10_000
	// trialPatience bounds the time for the servers to start and to agree.
	trialPatience = 30 * time.Second
	// trialPause is the interval between two checks of whether the servers have started and agree.
	trialPause = 20 * time.Millisecond
)

// Bounds and default of the first port: lower ports are reserved, and higher ones leave no room for
// the bus ports.
const (
	TrialPort     = 7001
	trialPortMin  = 1024
	trialPortMost = 65_535 - busAhead - trialNodes + 1
)

// Trial is a cluster for experiments: three masters with one replica each, on this machine.
type Trial struct {
	Dir     string // the absolute path of the folder of its files
	Port    int    // the port of the first node; the ports of the other nodes follow
	Started int    // number of nodes that StartTrial started
}

// StartTrial starts a cluster on consecutive ports, the first of which is port, and waits until it
// is ready. Each node has a folder in dir. Nodes that already run are kept. Nothing is persisted: a
// node that was stopped is empty when it returns, but keeps its place in the cluster. If another
// program listens on a port, StartTrial returns an error and leaves that program alone.
func StartTrial(ctx context.Context, dir string, port int) (*Trial, error) {
	disableLog()
	if port < trialPortMin || port > trialPortMost {
		return nil, fmt.Errorf("--port %d is out of bounds: six ports from there on, and as many %d above, must be between %d and 65535; "+
			"write --port %d", port, busAhead, trialPortMin, TrialPort)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	t := &Trial{Dir: dir, Port: port}
	if err := t.checkFolder(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, trialPatience)
	defer cancel()
	nodes, err := t.start(ctx)
	if err == nil {
		err = t.form(ctx, nodes)
	}
	for _, n := range nodes {
		err = errors.Join(err, n.close())
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Addrs returns the addresses of the nodes.
func (t *Trial) Addrs() (addrs []string) {
	for i := range trialNodes {
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", strconv.Itoa(t.Port+i)))
	}
	return addrs
}

// Stop returns the command that stops the nodes.
func (t *Trial) Stop() string { return "kill $(cat " + quoteWord(t.Dir) + "/*/" + pidFile + ")" }

// Trial.folder returns the folder of the i-th node.
func (t *Trial) folder(i int) string { return filepath.Join(t.Dir, strconv.Itoa(t.Port+i)) }

const (
	pidFile    = "redis.pid"
	configFile = "redis.conf"
)

// checkFolder returns an error if the folder contains a node of another trial cluster, at another
// port. The commands that stop this cluster and delete its files would also stop and delete the
// other one.
func (t *Trial) checkFolder() error {
	folders, err := os.ReadDir(t.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--dir: %w; name a folder that you may read", err)
	}
	for _, folder := range folders {
		port, err := strconv.Atoi(folder.Name())
		if err != nil || port >= t.Port && port < t.Port+trialNodes {
			continue
		}
		if _, err := os.Stat(filepath.Join(t.Dir, folder.Name(), configFile)); err == nil {
			return fmt.Errorf("--dir %q holds a node of another cluster, at port %d, and --port is %d: name another folder for this one, "+
				"or the first port of that one", t.Dir, port, t.Port)
		}
	}
	return nil
}

// Trial.start starts the nodes that are not running and returns all nodes, or none on an error. It
// checks all ports before it starts anything.
func (t *Trial) start(ctx context.Context) (nodes []*Node, err error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is not there; install it: apt-get install redis-server")
	}
	var missing []int
	for i, addr := range t.Addrs() {
		n := newNode(&redisstore.ToolServer{Network: "tcp", Addr: addr})
		nodes = append(nodes, n)
		var runs bool
		if err == nil { // after one error, the other ports are not checked
			runs, err = t.isRunning(ctx, n, i)
		}
		if !runs {
			missing = append(missing, i)
		}
	}
	for _, i := range missing {
		if err == nil {
			err = t.startNode(ctx, binary, i)
		}
	}
	for _, i := range missing {
		if err == nil {
			err = t.await(ctx, nodes[i], i)
		}
	}
	t.Started = len(missing)
	if err != nil {
		for _, n := range nodes {
			_ = n.close()
		}
		return nil, err
	}
	return nodes, nil
}

// isRunning reports whether a node of this cluster runs on its port. Any other listener on the port
// is an error.
func (t *Trial) isRunning(ctx context.Context, n *Node, i int) (runs bool, err error) {
	port := t.Port + i
	for _, p := range []int{port, port + busAhead} {
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if err == nil {
			_ = listener.Close()
			continue
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return false, fmt.Errorf("port %d: %w", p, err)
		}
		values, asked := n.send(ctx, "config", "get", "dir").Slice()
		if asked == nil && len(values) == 2 && sameFolder(fmt.Sprint(values[1]), t.folder(i)) {
			return true, nil
		}
		return false, fmt.Errorf("port %d is in use, and not by a cluster in %s; choose others, such as --port %d, or name its folder by "+
			"--dir", p, t.Dir, suggestPort(t.Port))
	}
	return false, nil
}

// suggestPort returns a different first port, in case ports near the given one are in use.
func suggestPort(port int) int {
	if port+100 > trialPortMost {
		return TrialPort
	}
	return port + 100
}

func sameFolder(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}

// settings is the configuration file of a node.
const settings = `# Written by penstock redis setup-cluster, for trying out: nothing is kept.
port %d
bind 127.0.0.1
dir %s
pidfile %s
logfile %s
daemonize yes
cluster-enabled yes
cluster-node-timeout 2000
cluster-require-full-coverage no
save ""
appendonly no
maxmemory 100mb
maxmemory-policy noeviction
`

func (t *Trial) startNode(ctx context.Context, binary string, i int) error {
	folder := t.folder(i)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("--dir: %w; name a folder that you may write to", err)
	}
	file := filepath.Join(folder, configFile)
	text := fmt.Sprintf(settings, t.Port+i, strconv.Quote(folder), strconv.Quote(filepath.Join(folder, pidFile)),
		strconv.Quote(filepath.Join(folder, "redis.log")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("--dir: %w; name a folder that you may write to", err)
	}
	if out, err := exec.CommandContext(ctx, binary, file).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", binary, file, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Trial.await waits until a node answers.
func (t *Trial) await(ctx context.Context, n *Node, i int) error {
	return retryUntilDone(ctx, func() error {
		err := n.send(ctx, "ping").Err()
		if err != nil {
			err = fmt.Errorf("%s does not answer: %w; see %s", n.Addr, err, filepath.Join(t.folder(i), "redis.log"))
		}
		return err
	})
}

// retryUntilDone calls the function named try until it succeeds. If ctx is done before that,
// retryUntilDone returns the last error of this function.
func retryUntilDone(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(trialPause):
		}
	}
}

// Trial.form joins the nodes into a cluster, unless they already form one.
func (t *Trial) form(ctx context.Context, nodes []*Node) error {
	var err error
	ask := func(n *Node, args ...any) string {
		text, problem := n.send(ctx, args...).Text()
		if problem != nil && err == nil {
			err = n.explain(problem)
		}
		return text
	}
	fresh := true
	for _, n := range nodes {
		fresh = fresh && strings.Count(ask(n, "cluster", "nodes"), "\n") == 1
	}
	for i, n := range nodes {
		if !fresh {
			break
		}
		for _, other := range nodes[i+1:] {
			host, port, _ := net.SplitHostPort(other.Addr)
			ask(n, "cluster", "meet", host, port)
		}
		if i < trialMasters {
			ask(n, append([]any{"cluster", "addslots"}, slotsOf(i)...)...)
		}
	}
	for i, n := range nodes[trialMasters:] {
		if fresh && err == nil {
			id := ask(nodes[i], "cluster", "myid")
			// The command succeeds as soon as the replica knows the master.
			err = retryUntilDone(ctx, func() error { return n.send(ctx, "cluster", "replicate", id).Err() })
		}
	}
	if err != nil {
		return err
	}
	return retryUntilDone(ctx, func() error { return t.checkReady(ctx, nodes) })
}

// slotsOf returns the slots of the i-th master.
func slotsOf(i int) (slots []any) {
	for slot := i * slotsOfCluster / trialMasters; slot < (i+1)*slotsOfCluster/trialMasters; slot++ {
		slots = append(slots, slot)
	}
	return slots
}

// checkReady returns an error that names what is not ready yet, or nil.
func (t *Trial) checkReady(ctx context.Context, nodes []*Node) error {
	for _, n := range nodes {
		text, err := n.send(ctx, "cluster", "info").Text()
		replication, err2 := n.client.Info(ctx, "replication").Result()
		switch {
		case err != nil || err2 != nil:
			return n.explain(errors.Join(err, err2))
		case !strings.Contains(text, "cluster_state:ok") || !strings.Contains(text, "cluster_known_nodes:6"),
			strings.Contains(replication, "master_link_status:down"):
			return fmt.Errorf("%s does not agree with the others; stop them and begin anew: %s; rm -r %s", n.Addr, t.Stop(), quoteWord(t.Dir))
		}
	}
	return nil
}
