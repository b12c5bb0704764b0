// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestSharedServers checks after which uses by a test a server is reused, and that a reused server
// is empty.
func TestSharedServers(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		use    func(s *Server)
		handed bool
	}{
		{name: "left as it was", handed: true, use: func(s *Server) { s.replyText("set", "k", "v"); s.replyText("script", "load", "return 1") }},
		{name: "settings changed", use: func(s *Server) { s.replyText("config", "set", "maxmemory", "1mb") }},
		{name: "a user more", use: func(s *Server) { s.replyText("acl", "setuser", "other", "on", "nopass") }},
		{name: "a replica of nothing", use: func(s *Server) { s.replyText("replicaof", "127.0.0.1", "1") }},
		{name: "paused", use: func(s *Server) { s.Pause(); s.Resume() }},
		{name: "killed", use: func(s *Server) { s.Kill() }},
		{name: "restarted", use: func(s *Server) { s.Restart() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var first string
			t.Run("first", func(t *testing.T) {
				s := Start(t)
				first = s.Addr
				c.use(s)
			})
			s := Start(t)
			if handed := s.Addr == first; handed != c.handed {
				t.Errorf("handed on: %v, want %v", handed, c.handed)
			}
			if _, err := os.Stat(first); c.handed != (err == nil) {
				t.Errorf("the socket of the first: %v", err)
			}
			if n := s.Client().DBSize(ctx).Val(); n != 0 || s.Calls("set") != 0 {
				t.Errorf("%d keys and %d sets of the test before", n, s.Calls("set"))
			}
		})
	}
	t.Run("at the same time", func(t *testing.T) {
		if one, two := Start(t), Start(t); one.Addr == two.Addr {
			t.Errorf("both are at %s", one.Addr)
		}
	})
}
