// SPDX-License-Identifier: Apache-2.0

// Package redistest starts real Redis servers for a test, without persistence, and stops them when
// the test ends. A test can have a single server on a Unix socket, a cluster of three masters with
// replicas, or a master and a replica with three sentinels.
//
// A server starts in about 20 ms, a cluster in about 3 s, and the sentinels in about 2 s. On a
// machine without redis-server the test fails, because a limiter over Redis must be tested with
// Redis. The package is not for benchmarks that compare machines, because the server shares the
// cores of the test's machine.
package redistest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/test/freeport"
)

// patience bounds the time that a server takes to start or to stop on a busy machine.
const patience = 20 * time.Second

// Server is a running redis-server. Its methods fail the test on an error. Only one goroutine may
// use a Server, except for Addr and Client, which several goroutines may use.
type Server struct {
	// Addr is the path of the server's Unix socket. For a server that listens on TCP, as in a
	// cluster or with sentinels, it is 127.0.0.1:PORT.
	Addr string

	t       testing.TB
	network string // "unix" or "tcp"
	args    []string
	config  string // the configuration file of a sentinel; "" for other servers
	dir     string
	client  Client
	process *exec.Cmd
	done    chan struct{} // closed when the process has ended

	touched  bool   // a test stopped, killed or paused it
	settings string // the initial settings of a shared server
}

// missing is the message on a machine without redis-server.
const missing = "these tests need redis-server: run make setup"

// Start starts a server. The arguments args are further redis-server options, which override those
// of this package. The server stops when the test ends, or is reused by another test: see [Main].
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if len(args) == 0 {
		if s := shared.lend(t); s != nil {
			return s
		}
	}
	s := onSocket(t, newDir(t), args...)
	s.endWith(t)
	s.run()
	s.await()
	return s
}

// StartTCP is [Start] for a server that listens on a free port of 127.0.0.1.
func StartTCP(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newTCPServer(t, freeport.Address(t), args...)
	s.run()
	s.await()
	return s
}

// StartAlone is [StartTCP] for a server in cluster mode that is alone in its cluster. The port of
// its bus is reserved as well.
func StartAlone(t testing.TB) *Server {
	t.Helper()
	s := newTCPServer(t, freeport.WithBus(t), "--cluster-enabled", "yes")
	s.run()
	s.await()
	return s
}

// newDir returns a directory that is removed when the test ends. It does not use t.TempDir, because
// the path of a socket may have at most 107 bytes.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newServer returns a server that does not run yet. If it runs when the test ends, it is stopped.
func newServer(t testing.TB, dir, network, addr string, args ...string) *Server {
	s := &Server{Addr: addr, t: t, network: network, args: args, dir: dir, client: newClient(network, addr)}
	s.endWith(t)
	return s
}

// onSocket returns a server that does not run yet. It will listen on a socket in its directory.
func onSocket(t testing.TB, dir string, args ...string) *Server {
	socket := filepath.Join(dir, "s")
	return &Server{Addr: socket, t: t, network: "unix", dir: dir, client: newClient("unix", socket),
		args: append([]string{"--port", "0", "--unixsocket", socket}, args...)}
}

// newClient returns a client that never retries.
func newClient(network, addr string) Client {
	return redis.NewClient(&redis.Options{Network: network, Addr: addr, MaxRetries: -1, DisableIdentity: true})
}

// endWith stops the process when the test ends.
func (s *Server) endWith(t testing.TB) {
	t.Cleanup(func() {
		_ = s.client.Close()
		if s.process != nil {
			_ = s.process.Process.Kill()
			<-s.done
		}
	})
}

// newTCPServer returns a server at 127.0.0.1:PORT that does not run yet.
func newTCPServer(t testing.TB, addr string, args ...string) *Server {
	_, port, _ := net.SplitHostPort(addr)
	return newServer(t, newDir(t), "tcp", addr, append([]string{"--port", port, "--bind", "127.0.0.1"}, args...)...)
}

// URL returns the server's address in the form that go-redis and the setting url of a store accept.
func (s *Server) URL() string {
	if s.network == "tcp" {
		return "redis://" + s.Addr
	}
	return "unix://" + s.Addr
}

// Client is a client of a server or of a cluster. It is an interface, so that packages with tests
// are compiled in less time: see redisstore.Client.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	Process(ctx context.Context, cmd redis.Cmder) error
	Close() error
}

// Client returns a client of the server, which is closed when the test ends. The client never
// retries.
func (s *Server) Client() Client { return s.client }

// Messages returns the messages that are published from now on in a Pub/Sub channel of the server.
func (s *Server) Messages(channel string) <-chan *redis.Message {
	subscription := s.client.(*redis.Client).Subscribe(context.Background(), channel)
	s.t.Cleanup(func() { _ = subscription.Close() })
	return subscription.Channel()
}

// Running reports whether the server runs, which means that it was started, and neither stopped nor
// killed since. A paused server counts as running.
func (s *Server) Running() bool { return s.process != nil }

// Server.run starts the process.
func (s *Server) run() {
	s.t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		s.t.Fatal(missing)
	}
	args := append([]string{"--dir", s.dir, "--save", "", "--appendonly", "no", "--logfile", filepath.Join(s.dir, "log")}, s.args...)
	if s.config != "" {
		args = []string{s.config, "--sentinel"}
	}
	process, done := exec.Command(binary, args...), make(chan struct{})
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = process.Wait()
		close(done)
	}()
	s.process, s.done = process, done
}

// Server.await waits until the server answers.
func (s *Server) await() {
	s.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if err = s.client.Ping(context.Background()).Err(); err == nil {
			return
		}
		select {
		case <-s.done:
			deadline = time.Time{}
		default:
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.t.Fatalf("redis-server does not answer: %v\n%s", err, log)
		}
	}
}

// Server.end waits until the process has ended.
func (s *Server) end() {
	s.t.Helper()
	select {
	case <-s.done:
		s.process = nil
	case <-time.After(patience):
		s.t.Fatal("redis-server does not end")
	}
}

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	s.touched = true
	if s.process == nil {
		s.t.Fatalf("%s: redis-server is not running", sig)
	}
	if err := s.process.Process.Signal(sig); err != nil {
		s.t.Fatalf("%s: %v", sig, err)
	}
}

// Stop shuts the server down in an orderly way. Its counters are lost.
func (s *Server) Stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	s.end()
}

// Kill ends the server as in a crash. Its connections are reset.
func (s *Server) Kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.end()
}

// Pause suspends the process. Connections stay open, but nothing is answered until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
}

// Resume continues a paused server, which then answers the commands sent in the meantime.
func (s *Server) Resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

// Restart starts the server again at the same address, without data. If the server runs, Restart
// kills it first. A cluster node and a sentinel keep their identity.
func (s *Server) Restart() {
	s.t.Helper()
	if s.process != nil {
		s.Kill()
	}
	s.run()
	s.await()
}

// Calls returns how many times the server has executed a command, according to its commandstats.
func (s *Server) Calls(command string) int64 {
	s.t.Helper()
	return statistic(s.t, s.info("commandstats"), "cmdstat_"+command, "calls")
}
