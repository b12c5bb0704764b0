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

	"github.com/penstock/penstock/internal/redisstore"
)

// answerTimeout is how long a server may take for one answer: a person waits, and may be far from it.
const answerTimeout = 5 * time.Second

// Mode is how servers stand together.
type Mode string

// The modes.
const (
	ModeSingle   Mode = "single"
	ModeSentinel Mode = "sentinel"
	ModeCluster  Mode = "cluster"
	ModeRing     Mode = "ring"
)

// Options say which servers to look at.
type Options struct {
	// Redis names servers and how to reach them, as for the store: mode, addresses, credentials, certificates. Without a mode
	// one is named, and how it stands with others is found out. A ring cannot be: its servers know nothing of one another.
	Redis redisstore.Options
	// Master is what the sentinels call the master; "" where they watch one only.
	Master string
	// Timeout is what the store is given for a question; 0 is its default. The doctor measures against it.
	Timeout time.Duration
}

// Deployment is the servers behind an address, as they were when it was asked. It is for one goroutine.
type Deployment struct {
	Mode      Mode
	Name      string  // sentinel: what the master is called
	Nodes     []*Node // those with counters: each master with its replicas behind it, by slots
	Sentinels []*Node

	options  Options
	base     *redis.Options   // of the server that was named
	given    []*redis.Options // those that were named
	moves    []move           // cluster: as far as the user may know
	watchers int              // sentinel: how many there are, by the one that was asked
	replicas int              // sentinel: how many replicas it knows
}

// Connect asks the server of the options who there is, and each how it is. The error says what to do. A server that does
// not answer is no error if it is another than the one named: [Node.Err] says so. The caller must call [Deployment.Close].
func Connect(ctx context.Context, options Options) (*Deployment, error) {
	silence()
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

// findByAny finds the servers by the first of those named that answers.
func (d *Deployment) findByAny(ctx context.Context, named []*redis.Options) error {
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
			return fmt.Errorf("the mode is %s, and by %s this is %s; write --redis-mode %s", mode, first.Addr, modeTexts[d.Mode], d.Mode)
		}
		return nil
	}
	return errors.Join(problems...)
}

var modeTexts = map[Mode]string{ModeSingle: "one server", ModeSentinel: "a master with sentinels", ModeCluster: "a cluster"}

// reach asks a server how it is.
func (d *Deployment) reach(ctx context.Context, o *redis.Options) (*Node, error) {
	first := d.newNode(o)
	first.sentinel = d.options.Redis.Mode == redisstore.ModeSentinel
	err := first.ask(ctx)
	if err != nil && o.Password != "" && redis.IsAuthError(err) {
		// Sentinels often want no password where servers do.
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

// findRing takes the servers that are named for all there are.
func (d *Deployment) findRing(ctx context.Context, named []*redis.Options) error {
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

// silence keeps go-redis from writing what it meets to the standard error: who asked is told by an error.
var silence = sync.OnceFunc(logging.Disable)

// Close ends the connections.
func (d *Deployment) Close() error {
	var problems []error
	for _, n := range slices.Concat(d.Nodes, d.Sentinels) {
		problems = append(problems, n.close())
	}
	return errors.Join(problems...)
}

func withoutPassword(o *redis.Options) *redis.Options {
	open := *o
	open.Username, open.Password = "", ""
	return &open
}

// find asks the first server for the others.
func (d *Deployment) find(ctx context.Context, first *Node) error {
	switch {
	case first.info["redis_mode"] == "sentinel":
		d.Mode = ModeSentinel
		return d.findBySentinel(ctx, first)
	case d.options.Master != "":
		_ = first.close()
		return fmt.Errorf("--master %q goes with sentinels, and %s is none; leave it out, or name a sentinel by --redis",
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

// at returns how to reach another server as the first is reached.
func (d *Deployment) at(addr string, base *redis.Options) *redis.Options {
	other := *base
	other.Network, other.Addr = "tcp", addr
	if other.TLSConfig != nil && d.options.Redis.ServerName == "" {
		other.TLSConfig = other.TLSConfig.Clone()
		other.TLSConfig.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return &other
}

// askAll asks servers that were not asked yet how they are, all at once.
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
	Of     string // of a replica: its master's address
	Slots  []Slots
	Err    error // why it could not be asked

	id      string
	flags   string // as a cluster has them
	options *redis.Options
	secure  []string // how redis-cli is told of certificates
	client  *redis.Client

	sentinel bool              // it is asked as one
	info     map[string]string // by its INFO; nil if it could not be asked
}

func newNode(o *redis.Options) *Node {
	return &Node{Addr: o.Addr, options: o, client: redis.NewClient(o)}
}

// newNode returns a server that is reached by the certificates of the options.
func (d *Deployment) newNode(o *redis.Options) *Node {
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

func (n *Node) close() error { return n.client.Close() }

// ask reads what the server says of itself.
func (n *Node) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	text, err := n.client.Info(ctx).Result()
	if n.sentinel && redis.IsPermissionError(err) { // it answers, and the store needs no INFO of it
		text, err = "redis_mode:sentinel", nil
	}
	if err != nil {
		return err
	}
	n.info = map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			n.info[name] = value
		}
	}
	return nil
}

// said puts a question to the server.
func (n *Node) said(ctx context.Context, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return n.client.Do(ctx, args...)
}

// explain says what to do about an error of the server.
func (n *Node) explain(err error) error {
	var (
		network     *net.OpError
		unknown     *net.DNSError
		certificate *tls.CertificateVerificationError
	)
	switch {
	case redis.IsPermissionError(err):
		return fmt.Errorf("%s: %w; let the user do that: %s", n.Addr, err, n.cli("ACL", "SETUSER", n.user(), "+"+refusedCommand(err)))
	case redis.IsAuthError(err) && n.options.Password == "":
		return fmt.Errorf("%s wants a password: %w; add --redis-password-file FILE, or write redis://USER:{env.NAME}@HOST", n.Addr, err)
	case redis.IsAuthError(err):
		return fmt.Errorf("%s: %w; check the user and the password: %s", n.Addr, err, n.cli("ACL", "GETUSER", n.user()))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		secure := ""
		if n.options.TLSConfig != nil {
			secure = ", it speaks no TLS (then write redis://)"
		}
		return fmt.Errorf("%s does not answer within %v: it hangs%s, or something on the way swallows what is sent; restart it, or look at "+
			"the firewall", n.Addr, answerTimeout, secure)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s cannot be found: %w; check the name", n.Addr, err)
	case errors.As(err, &certificate):
		return fmt.Errorf("%s: %w; add --redis-ca FILE, or --redis-server-name NAME", n.Addr, err)
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("%s cannot be reached: %w; start it, or let this machine connect to it", n.Addr, err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.As(err, &network):
		wants := "TLS (then write rediss://)"
		if n.options.TLSConfig != nil {
			wants = "another client certificate (--redis-cert FILE, --redis-key FILE)"
		}
		return fmt.Errorf("%s ended the connection: %w; see its log, and whether it wants %s", n.Addr, err, wants)
	}
	return fmt.Errorf("%s: %w", n.Addr, err)
}

// refusedCommand returns the command that a NOPERM names, as in "… no permissions to run the 'cluster|nodes' command".
func refusedCommand(err error) string {
	_, rest, _ := strings.Cut(err.Error(), "'")
	command, _, ok := strings.Cut(rest, "'")
	if !ok || strings.ContainsFunc(command, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "info"
	}
	return command
}

func (n *Node) user() string {
	if n.options.Username == "" {
		return "default"
	}
	return n.options.Username
}

// cli returns the command line that says something to the server.
func (n *Node) cli(args ...string) string {
	words := []string{"redis-cli"}
	if n.options.Network == "unix" {
		words = append(words, "-s", n.Addr)
	} else if host, port, err := net.SplitHostPort(n.Addr); err == nil {
		words = append(words, "-h", host, "-p", port)
	}
	return n.line(words, args)
}

// clusterCLI returns the command line that does something with the cluster of the server.
func (n *Node) clusterCLI(args ...string) string {
	return n.line([]string{"redis-cli", "--cluster"}, args)
}

func (n *Node) line(words, args []string) string {
	for _, arg := range slices.Concat(n.secure, args) {
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " ")
}

// quoted writes a word for a shell.
func quoted(word string) string {
	if word == "" || strings.ContainsAny(word, " \"'$&|;<>*?[]()#~`\\!{}") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}
