// SPDX-License-Identifier: Apache-2.0

package redistest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestServer(t *testing.T) {
	var s *Server
	t.Run("life", func(t *testing.T) {
		ctx := context.Background()
		s = Start(t, "--maxmemory", "64mb")
		get := func() error { return s.Client().Set(ctx, "k", "v", 0).Err() }
		if err := get(); err != nil {
			t.Fatal(err)
		}
		if got := s.Client().ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != "67108864" {
			t.Errorf("an option given to Start: maxmemory is %q", got)
		}
		if s.Calls("set") != 1 || s.Calls("lpush") != 0 || s.Memory() < 100_000 {
			t.Errorf("statistics: %d sets, %d pushes, %d bytes", s.Calls("set"), s.Calls("lpush"), s.Memory())
		}
		s.Pause()
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := s.client.(*redis.Client).WithTimeout(20 * time.Millisecond).Ping(short).Err(); err == nil {
			t.Error("a paused server answers")
		}
		s.Resume()
		if err := get(); err != nil {
			t.Errorf("after Resume: %v", err)
		}
		s.Stop()
		if err := get(); err == nil {
			t.Error("a stopped server answers")
		}
		s.Restart()
		s.Kill()
		s.Restart()
		if n := s.Client().DBSize(ctx).Val(); n != 0 {
			t.Errorf("%d keys after Restart", n)
		}
	})
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left behind: %v", err)
	}
}
