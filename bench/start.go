// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// benchPolicy is the bridge's policy, in which %s stands for the rules.
const benchPolicy = "name: bench\non_error: deny\nrules:\n%s"

// filterSettings is the filter's configuration.
const filterSettings = "cluster: service\ndeadline: 500ms\non_error: deny\npoll: 1s\n"

// bench is the directory and the processes of one comparison.
type bench struct {
	options
	dir      string
	upstream int
	http1    bool // between Envoy and the bridge
	started  []*process
	closers  []func()
}

func newBench(o options) (b *bench, err error) {
	b = &bench{options: o}
	if b.dir, err = os.MkdirTemp("", "penstock-bench"); err != nil {
		return nil, err
	}
	b.upstream, err = startUpstream()
	return b, err
}

// bench.close calls the closers, and then stops the processes in the reverse order of their start.
func (b *bench) close() {
	for _, c := range b.closers {
		c()
	}
	for i := len(b.started) - 1; i >= 0; i-- {
		b.started[i].stop()
	}
	_ = os.RemoveAll(b.dir)
}

// bench.start starts a program, which runs until the comparison is finished.
func (b *bench) start(name string, environment []string, program string, args ...string) (*process, error) {
	p, err := startProcess(name, filepath.Join(b.dir, fmt.Sprintf("%s-%d.log", name, len(b.started))), environment, program, args...)
	if err == nil {
		b.started = append(b.started, p)
	}
	return p, err
}

// file writes a file with a unique name and returns its path.
func (b *bench) file(kind, text string) (path string, err error) {
	dir, err := os.MkdirTemp(b.dir, "*")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, kind)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func (b *bench) redis() (p *process, address string, err error) {
	port, err := laterPort()
	if err != nil {
		return nil, "", err
	}
	if p, err = b.start("Redis", nil, "redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "no", "--dir", b.dir); err != nil {
		return nil, "", err
	}
	address = fmt.Sprintf("127.0.0.1:%d", port)
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	return p, address, p.until(5*time.Second, "answers", func() bool { return client.Ping(context.Background()).Err() == nil })
}

// redisCalls returns how many of the given commands clients have sent to a Redis. It does not count
// the commands inside scripts.
func redisCalls(address string, commands ...string) (calls int, err error) {
	if address == "" {
		return 0, nil
	}
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	text, err := client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for _, command := range commands {
		if _, rest, found := strings.Cut(text, "cmdstat_"+command+":calls="); found {
			number, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(number)
			if err != nil {
				return 0, err
			}
			calls += n
		}
	}
	return calls, nil
}

// caddySetting is the configuration of a Caddy.
type caddySetting struct {
	program string // "" for the benchmark's own Caddy
	global  string // global options
	site    string // directives of its one site
}

// caddyNode starts a Caddy and waits until it answers.
func (b *bench) caddyNode(s caddySetting) (p *process, url string, err error) {
	port, err := laterPort()
	if err != nil {
		return nil, "", err
	}
	file, err := b.file("Caddyfile", fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n%s\n}\nhttp://127.0.0.1:%d {\n%s\n}\n", s.global, port, s.site))
	if err != nil {
		return nil, "", err
	}
	if s.program == "" {
		s.program = b.options.caddy
	}
	environment := []string{"HOME=" + b.dir, "XDG_DATA_HOME=" + b.dir, "XDG_CONFIG_HOME=" + b.dir}
	if p, err = b.start("Caddy", environment, s.program, "run", "--adapter", "caddyfile", "--config", file); err != nil {
		return nil, "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return p, "http://" + address + "/", p.until(20*time.Second, "listens", func() bool { return listens(address) })
}

// listens reports whether a server accepts connections. It sends no request, because a request
// would be charged to a limit.
func listens(address string) bool {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	c, err := net.Dial(network, address)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// bridge starts a bridge with the given rules, on a Unix socket of its own. If redisAddress is "",
// its counters are in memory.
func (b *bench) bridge(rules, redisAddress string, more ...string) (p *process, socket string, err error) {
	file, err := b.file("policy.yaml", fmt.Sprintf(benchPolicy, rules))
	if err != nil {
		return nil, "", err
	}
	socket = file + ".sock"
	args := append([]string{"bridge", "--policy", file, "--listen", "unix:" + socket}, more...)
	if redisAddress != "" {
		args = append(args, "--redis", "redis://"+redisAddress, "--redis-timeout", "500ms")
	}
	if p, err = b.start("bridge", nil, penstockProgram, args...); err != nil {
		return nil, "", err
	}
	return p, socket, p.until(20*time.Second, "listens", func() bool { return listens(socket) })
}

// bench.service starts a bridge that serves Envoy's rate limit protocol.
func (b *bench) service(rules, redisAddress string) (p *process, address string, err error) {
	port, err := laterPort()
	if err != nil {
		return nil, "", err
	}
	address = fmt.Sprintf("127.0.0.1:%d", port)
	if p, _, err = b.bridge(rules, redisAddress, "--rls-listen", address); err != nil {
		return nil, "", err
	}
	return p, address, p.until(10*time.Second, "listens", func() bool { return listens(address) })
}

// envoy starts an Envoy and returns it as a system, together with the processes that it calls. It
// may return before Envoy has its policy.
func (b *bench) envoy(name string, s envoySetting, behind ...*process) (*system, error) {
	s.upstream, s.workers = b.upstream, b.workers
	p, url, _, _, err := startEnvoy(b, s)
	if err != nil {
		return nil, err
	}
	return &system{name: name, url: url, processes: append([]*process{p}, behind...)}, nil
}
