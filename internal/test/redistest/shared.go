// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// shared is the pool that the tests of a package use if its TestMain calls [Main].
var shared pool

// pool keeps idle servers for later tests.
type pool struct {
	mu   sync.Mutex
	open bool
	idle []*Server
}

// Main runs the tests of a package with as few servers as possible. Without options, [Start] may
// return the server of an earlier test, without its data. Tests that run at the same time have
// separate servers. A server is not reused if its test stopped, killed or paused it, or changed its
// settings or users. TestMain must pass the result to os.Exit.
func Main(m *testing.M) int {
	if _, err := exec.LookPath("redis-server"); err != nil {
		fmt.Fprintln(os.Stderr, missing)
		return 1
	}
	shared.mu.Lock()
	shared.open = true
	shared.mu.Unlock()
	defer shared.close()
	return m.Run()
}

// pool.lend returns an idle server, or starts one that later tests may reuse. It returns nil if the
// package does not share servers.
func (p *pool) lend(t testing.TB) *Server {
	t.Helper()
	p.mu.Lock()
	if !p.open {
		p.mu.Unlock()
		return nil
	}
	var idle *Server
	if n := len(p.idle); n > 0 {
		idle, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	if idle == nil {
		dir, err := os.MkdirTemp("", "redis")
		if err != nil {
			t.Fatal(err)
		}
		idle = onSocket(t, dir)
		t.Cleanup(func() {
			if idle.settings == "" { // the server never answered
				idle.discard()
			}
		})
		idle.run()
		idle.await()
		if idle.settings, err = readSettings(idle.client); err != nil {
			t.Fatal(err)
		}
		_ = idle.client.Close()
	}
	s := *idle
	s.t, s.touched, s.client = t, false, newClient(s.network, s.Addr)
	t.Cleanup(func() { p.put(&s) })
	return &s
}

// pool.put returns a server to the pool at the end of a test, or stops it.
func (p *pool) put(s *Server) {
	clean := s.process != nil && !s.touched && !s.t.Failed() && s.isEmptied()
	_ = s.client.Close()
	if !clean {
		s.discard()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, s)
}

// pool.close stops all servers.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.idle {
		s.discard()
	}
	p.idle, p.open = nil, false
}

// Server.discard ends the process and removes its directory.
func (s *Server) discard() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		<-s.done
	}
	_ = os.RemoveAll(s.dir)
}

// isEmptied removes what a test left in the server: data, clients and statistics. It reports
// whether everything else is as it was before the test.
func (s *Server) isEmptied() bool {
	ctx := context.Background()
	client := newClient(s.network, s.Addr)
	defer client.Close()
	for _, command := range [][]any{
		{"client", "unpause"},
		{"client", "kill", "type", "normal", "skipme", "yes"},
		{"client", "kill", "type", "pubsub"},
		{"flushall"},
		{"script", "flush"},
		{"slowlog", "reset"},
		{"acl", "log", "reset"},
		{"config", "resetstat"},
	} {
		if err := client.Do(ctx, command...).Err(); err != nil {
			return false
		}
	}
	settings, err := readSettings(client)
	return err == nil && settings == s.settings
}

// readSettings returns the server's settings, users and replication state as one text.
func readSettings(client Client) (string, error) {
	ctx := context.Background()
	settings, err := client.ConfigGet(ctx, "*").Result()
	if err != nil {
		return "", err
	}
	users, err := client.Do(ctx, "acl", "list").Result()
	if err != nil {
		return "", err
	}
	role, err := client.Do(ctx, "role").Slice()
	if err != nil {
		return "", err
	}
	return fmt.Sprint(settings, users, role[0]), nil
}
