// SPDX-License-Identifier: Apache-2.0

// Package redistest starts real servers of Redis for a test, without persistence, gone when the test ends: one on a unix
// socket in a directory of its own, a cluster of three masters and their replicas, or a master and a replica with three
// sentinels.
//
// A start takes some 20 ms, of a cluster some 3 s, of the sentinels some 2 s. A machine without redis-server fails the test: a limiter over Redis that was not tried on
// Redis was not tried. Not for benchmarks across machines: the server shares this machine's cores.
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

	"github.com/penstock/penstock/internal/freeport"
)

// patience is how long a server may take to start or to stop on a busy machine.
const patience = 20 * time.Second

// Server is a running redis-server. Its methods fail the test when the server does not obey. It is for one goroutine;
// Addr and Client may be used by several.
type Server struct {
	// Addr is the path of the server's unix socket, or 127.0.0.1:PORT of one over TCP, of a cluster or of sentinels.
	Addr string

	t       testing.TB
	network string // "unix" or "tcp"
	args    []string
	config  string // of a sentinel: the file that it keeps its settings in
	dir     string
	client  *redis.Client
	process *exec.Cmd
	done    chan struct{} // closed when the process has ended
}

// Start starts a server; args are further redis-server options, which win over the helper's own. The test's end stops it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	dir := newDir(t)
	socket := filepath.Join(dir, "s")
	s := newServer(t, dir, "unix", socket, append([]string{"--port", "0", "--unixsocket", socket}, args...)...)
	s.run()
	s.await()
	return s
}

// StartTCP is [Start] for a server at 127.0.0.1 and a free port.
func StartTCP(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newTCPServer(t, freeport.Address(t), args...)
	s.run()
	s.await()
	return s
}

// StartAlone is [StartTCP] for a server that is a cluster's, and the only one of it: its bus has a port of its own.
func StartAlone(t testing.TB) *Server {
	t.Helper()
	s := newTCPServer(t, freeport.WithBus(t), "--cluster-enabled", "yes")
	s.run()
	s.await()
	return s
}

// newDir returns a directory that is gone when the test ends. Not t.TempDir: a socket's path is at most 107 bytes.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newServer returns a server that does not run yet.
func newServer(t testing.TB, dir, network, addr string, args ...string) *Server {
	s := &Server{Addr: addr, t: t, network: network, args: args, dir: dir}
	s.client = redis.NewClient(&redis.Options{Network: network, Addr: addr, MaxRetries: -1, DisableIdentity: true})
	t.Cleanup(func() {
		_ = s.client.Close()
		if s.process != nil {
			_ = s.process.Process.Kill()
			<-s.done
		}
	})
	return s
}

// newTCPServer returns a server at 127.0.0.1:PORT that does not run yet.
func newTCPServer(t testing.TB, addr string, args ...string) *Server {
	_, port, _ := net.SplitHostPort(addr)
	return newServer(t, newDir(t), "tcp", addr, append([]string{"--port", port, "--bind", "127.0.0.1"}, args...)...)
}

// URL is the server's address as go-redis and the store's url take it.
func (s *Server) URL() string {
	if s.network == "tcp" {
		return "redis://" + s.Addr
	}
	return "unix://" + s.Addr
}

// Client returns a client of the server, closed when the test ends. It never retries.
func (s *Server) Client() *redis.Client { return s.client }

// Running reports whether the server has not been stopped or killed. A paused one runs.
func (s *Server) Running() bool { return s.process != nil }

// run starts the process.
func (s *Server) run() {
	s.t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		s.t.Fatalf("these tests need redis-server: install it (apt-get install redis-server): %v", err)
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

// await waits until a server that was started answers.
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

// end waits until the process has ended.
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
	if s.process == nil {
		s.t.Fatalf("%s: redis-server is not running", sig)
	}
	if err := s.process.Process.Signal(sig); err != nil {
		s.t.Fatalf("%s: %v", sig, err)
	}
}

// Stop ends the server in an orderly way. Its counters are lost.
func (s *Server) Stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	s.end()
}

// Kill ends the server at once, as a crash does: connections are reset.
func (s *Server) Kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.end()
}

// Pause stops the server in its tracks: connections stay open and nothing is answered, until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
}

// Resume lets a paused server go on: it answers what was sent meanwhile.
func (s *Server) Resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

// Restart starts the server again, empty, at the same address, killing it first if it runs. One of a cluster and a sentinel
// remember who they are.
func (s *Server) Restart() {
	s.t.Helper()
	if s.process != nil {
		s.Kill()
	}
	s.run()
	s.await()
}

// Calls returns how often the server has executed a command, by its commandstats.
func (s *Server) Calls(command string) int64 {
	s.t.Helper()
	return statistic(s.t, s.info("commandstats"), "cmdstat_"+command, "calls")
}
