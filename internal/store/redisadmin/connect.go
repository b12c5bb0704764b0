// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// answerTimeout is how long a server may take to answer. answerTimeout is generous, because a
// person is waiting, possibly far from the server.
const answerTimeout = 5 * time.Second

// Mode is the topology of the servers.
type Mode string

// The modes.
const (
	ModeSingle   Mode = "single"
	ModeSentinel Mode = "sentinel"
	ModeCluster  Mode = "cluster"
	ModeRing     Mode = "ring"
)

// Options selects the servers to inspect.
type Options struct {
	// Redis names the servers and how to reach them (mode, addresses, credentials, certificates),
	// as for the store. Without a mode it names one server, and the topology is discovered. A ring
	// cannot be discovered, because its servers do not know each other.
	Redis redisstore.Options
	// Master is the sentinels' name for the master; "" if the sentinels watch only one master.
	Master string
	// Timeout is the store's timeout for a call; 0 means the store's default. The doctor compares
	// its measurements with this timeout.
	Timeout time.Duration
}

// Deployment is a snapshot of the servers behind an address. A Deployment must not be used by
// several goroutines at once.
type Deployment struct {
	Mode      Mode
	Name      string  // behind sentinels: the master's name
	Nodes     []*Node // servers with counters: each master followed by its replicas, ordered by slots
	Sentinels []*Node

	options       Options
	base          *redisstore.ToolServer   // how to connect to a server that is discovered
	given         []*redisstore.ToolServer // all named servers
	moves         []move                   // in a cluster: the moves that the user may see
	sentinelCount int                      // behind sentinels: the number of sentinels, according to the first sentinel
	replicas      int                      // behind sentinels: the number of replicas, according to the first sentinel
}

// Connect discovers the servers, starting from the servers that the options name, and reads the
// state of each. The errors of Connect state what to do. If a discovered server does not answer,
// Connect succeeds and sets [Node.Err]. The caller must call [Deployment.Close].
func Connect(ctx context.Context, options Options) (*Deployment, error) {
	disableLog()
	base, named, err := options.Redis.ToolServers()
	if err != nil {
		return nil, err
	}
	if options.Timeout == 0 {
		options.Timeout = redisstore.TimeoutDefault
	}
	d := &Deployment{options: options, base: base, given: named}
	if options.Redis.Mode == redisstore.ModeRing {
		err = d.findRing(ctx, named)
	} else {
		err = d.findByAny(ctx, named)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// findByAny discovers the servers from the first named one that answers.
func (d *Deployment) findByAny(ctx context.Context, named []*redisstore.ToolServer) error {
	var problems []error
	for _, o := range named {
		first, err := d.reach(ctx, o)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if err := d.find(ctx, first); err != nil {
			return err
		}
		if mode := Mode(d.options.Redis.Mode); mode != "" && mode != d.Mode {
			return fmt.Errorf("the mode is %s, but %s is %s; write --redis-mode %s", mode, first.Addr, modeTexts[d.Mode], d.Mode)
		}
		return nil
	}
	return errors.Join(problems...)
}

var modeTexts = map[Mode]string{ModeSingle: "one server", ModeSentinel: "a master with sentinels", ModeCluster: "a cluster"}

// Deployment.reach connects to a server and reads its state.
func (d *Deployment) reach(ctx context.Context, o *redisstore.ToolServer) (*Node, error) {
	first := d.newNode(o)
	first.sentinel = d.options.Redis.Mode == redisstore.ModeSentinel
	err := first.ask(ctx)
	if err != nil && o.Password != "" && redis.IsAuthError(err) {
		// Sentinels often have no password although the servers have one.
		if open := d.newNode(withoutPassword(o)); open.ask(ctx) == nil && open.info["redis_mode"] == "sentinel" {
			_ = first.close()
			return open, nil
		} else {
			_ = open.close()
		}
	}
	if err != nil {
		err = first.explain(err)
		_ = first.close()
		return nil, err
	}
	return first, nil
}

// findRing uses the named servers as the whole ring.
func (d *Deployment) findRing(ctx context.Context, named []*redisstore.ToolServer) error {
	d.Mode = ModeRing
	for _, o := range named {
		d.Nodes = append(d.Nodes, d.newNode(o))
	}
	askAll(ctx, d.Nodes)
	var problems []error
	for _, n := range d.Nodes {
		n.Master = n.info["role"] != "slave"
		if n.Err != nil {
			problems = append(problems, n.Err)
		}
	}
	if len(problems) == len(d.Nodes) {
		return errors.Join(problems...)
	}
	return nil
}

// disableLog prevents go-redis from logging to standard error; errors contain the same information.
var disableLog = sync.OnceFunc(logging.Disable)

// Close closes the connections.
func (d *Deployment) Close() error {
	var problems []error
	for _, n := range slices.Concat(d.Nodes, d.Sentinels) {
		problems = append(problems, n.close())
	}
	return errors.Join(problems...)
}

func withoutPassword(o *redisstore.ToolServer) *redisstore.ToolServer {
	open := *o
	open.Username, open.Password = "", ""
	return &open
}

// Deployment.find discovers the other servers of the deployment by asking the first one.
func (d *Deployment) find(ctx context.Context, first *Node) error {
	switch {
	case first.info["redis_mode"] == "sentinel":
		d.Mode = ModeSentinel
		return d.findBySentinel(ctx, first)
	case d.options.Master != "":
		_ = first.close()
		return fmt.Errorf("--master %q goes with sentinels, but %s is not one; leave it out, or name a sentinel by --redis",
			d.options.Master, first.Addr)
	case first.info["cluster_enabled"] == "1":
		d.Mode = ModeCluster
		return d.findCluster(ctx, first)
	default:
		d.Mode, d.Nodes = ModeSingle, []*Node{first}
		first.Master = first.info["role"] != "slave"
		return nil
	}
}

// Deployment.at returns how to connect to another server, based on a known one.
func (d *Deployment) at(addr string, base *redisstore.ToolServer) *redisstore.ToolServer {
	other := *base
	other.Network, other.Addr = "tcp", addr
	if other.TLSConfig != nil && d.options.Redis.ServerName == "" {
		other.TLSConfig = other.TLSConfig.Clone()
		other.TLSConfig.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return &other
}

// askAll reads the state of all servers that have not been asked yet, concurrently.
func askAll(ctx context.Context, nodes []*Node) {
	var asking sync.WaitGroup
	for _, n := range nodes {
		if n.info == nil {
			asking.Go(func() {
				if err := n.ask(ctx); err != nil {
					n.Err = n.explain(err)
				}
			})
		}
	}
	asking.Wait()
}

// Node is one server.
type Node struct {
	Addr   string // host:port, or the path of a socket
	Master bool
	Of     string // address of a replica's master
	Slots  []Slots
	Err    error // the reason why its state could not be read

	id     string
	flags  string // the server's flags, as CLUSTER NODES or a sentinel lists them
	server *redisstore.ToolServer
	secure []string // TLS options for redis-cli
	client redisstore.Client

	sentinel bool              // whether to connect to it as a sentinel
	info     map[string]string // fields of INFO; nil if it could not be read
}

func newNode(o *redisstore.ToolServer) *Node {
	return &Node{Addr: o.Addr, server: o, client: o.Open()}
}

// newNode returns a server that is reached with the certificates of the options.
func (d *Deployment) newNode(o *redisstore.ToolServer) *Node {
	n := newNode(o)
	if o.TLSConfig != nil {
		n.secure = []string{"--tls"}
		r := &d.options.Redis
		for _, flag := range [][2]string{{"--cacert", r.CAFile}, {"--cert", r.CertFile}, {"--key", r.KeyFile}, {"--sni", r.ServerName}} {
			if flag[1] != "" {
				n.secure = append(n.secure, flag[0], flag[1])
			}
		}
	}
	return n
}

// Client returns the plain client of the server.
func (n *Node) Client() redisstore.Client { return n.client }

// Explain adds a remedy to an error of the server.
func (n *Node) Explain(err error) error { return n.explain(err) }

func (n *Node) close() error { return n.client.Close() }

// Node.ask reads the server's INFO.
func (n *Node) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	text, err := n.client.Info(ctx).Result()
	// The sentinel answers, and the store does not need its INFO.
	if n.sentinel && redis.IsPermissionError(err) {
		text, err = "redis_mode:sentinel", nil
	}
	if err != nil {
		return err
	}
	n.info = parseInfo(text)
	return nil
}

// parseInfo returns the fields of an INFO reply. In Valkey 8, the field redis_mode has the name
// server_mode.
func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	if mode, ok := info["server_mode"]; ok {
		info["redis_mode"] = mode
	}
	return info
}

// Node.send sends a command to the server.
func (n *Node) send(ctx context.Context, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return n.client.Do(ctx, args...)
}

// Node.explain adds a remedy to an error.
func (n *Node) explain(err error) error {
	var (
		network     *net.OpError
		unknown     *net.DNSError
		certificate *tls.CertificateVerificationError
	)
	switch {
	case redis.IsPermissionError(err):
		return fmt.Errorf("%s: %w; let the user do that: %s", n.Addr, err, n.cli("ACL", "SETUSER", n.user(), "+"+deniedCommand(err)))
	case redis.IsAuthError(err) && n.server.Password == "":
		return fmt.Errorf("%s wants a password: %w; add --redis-password-file FILE, or write redis://USER:{env.NAME}@HOST", n.Addr, err)
	case redis.IsAuthError(err):
		return fmt.Errorf("%s: %w; check the user and the password: %s", n.Addr, err, n.cli("ACL", "GETUSER", n.user()))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		secure := ""
		if n.server.TLSConfig != nil {
			secure = ", it speaks no TLS (then write redis://)"
		}
		return fmt.Errorf("%s does not answer within %v: it hangs%s, or a firewall drops packets; restart it, or look at "+
			"the firewall", n.Addr, answerTimeout, secure)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s cannot be found: %w; check the name", n.Addr, err)
	case errors.As(err, &certificate):
		return fmt.Errorf("%s: %w; add --redis-ca FILE, or --redis-server-name NAME", n.Addr, err)
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("%s cannot be reached: %w; start it, or let this machine connect to it", n.Addr, err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.As(err, &network):
		wants := "TLS (then write rediss://)"
		if n.server.TLSConfig != nil {
			wants = "another client certificate (--redis-cert FILE, --redis-key FILE)"
		}
		return fmt.Errorf("%s ended the connection: %w; see its log, and whether it wants %s", n.Addr, err, wants)
	}
	return fmt.Errorf("%s: %w", n.Addr, err)
}

// deniedCommand returns the command that a NOPERM error names, as in "… no permissions to run the
// 'cluster|nodes' command".
func deniedCommand(err error) string {
	_, rest, _ := strings.Cut(err.Error(), "'")
	command, _, ok := strings.Cut(rest, "'")
	if !ok || strings.ContainsFunc(command, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "info"
	}
	return command
}

func (n *Node) user() string {
	if n.server.Username == "" {
		return "default"
	}
	return n.server.Username
}

// Node.cli returns a redis-cli command line for the server.
func (n *Node) cli(args ...string) string {
	words := []string{"redis-cli"}
	if n.server.Network == "unix" {
		words = append(words, "-s", n.Addr)
	} else if host, port, err := net.SplitHostPort(n.Addr); err == nil {
		words = append(words, "-h", host, "-p", port)
	}
	return n.line(words, args)
}

// clusterCLI returns a redis-cli --cluster command line.
func (n *Node) clusterCLI(args ...string) string {
	return n.line([]string{"redis-cli", "--cluster"}, args)
}

func (n *Node) line(words, args []string) string {
	for _, arg := range slices.Concat(n.secure, args) {
		words = append(words, quoteWord(arg))
	}
	return strings.Join(words, " ")
}

// quoteWord quotes a word for a shell, if necessary.
func quoteWord(word string) string {
	if word == "" || strings.ContainsAny(word, " \"'$&|;<>*?[]()#~`\\!{}") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}
