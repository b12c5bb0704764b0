// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/redistest"
)

// grantLimiter gives a server the user "limiter", who may do no more than docs/operations.md grants it, and more.
func grantLimiter(t *testing.T, s *redistest.Server, more string) {
	t.Helper()
	args := []any{"acl", "setuser", "limiter", "reset", "on", ">secret-secret"}
	for word := range strings.FieldsSeq(redisstore.LeastPrivilege + " " + more) {
		args = append(args, word)
	}
	if err := s.Client().Do(context.Background(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// asLimiter returns options for a server's user of [grantLimiter].
func asLimiter(t *testing.T, s *redistest.Server, more string) Options {
	t.Helper()
	grantLimiter(t, s, more)
	o := at(s.URL())
	o.Redis.Username, o.Redis.Password = "limiter", "secret-secret"
	return o
}

// TestDoctorDoesNotGuessSettings holds that a setting which the limiter's user may not ask for is told as not known, and as it is
// once the right that is named is there.
func TestDoctorDoesNotGuessSettings(t *testing.T) {
	for _, c := range []struct {
		name             string
		args             []string
		unknown, setting string
		known            string
	}{
		{"snapshots", []string{"--save", "60 1000"}, "as old as the last snapshot, or forgotten if none is made", "save", "snapshots only"},
		{"off", nil, "as old as the last snapshot, or forgotten if none is made", "save", "off: a restart forgets every counter"},
		{"always", []string{"--appendonly", "yes", "--appendfsync", "always"}, "with appendfsync always each charge waits", "appendfsync",
			"appendonly with appendfsync always"},
		{"everysec", []string{"--appendonly", "yes"}, "with appendfsync always each charge waits", "appendfsync", "about the last second are forgotten"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t, append([]string{"--maxmemory", "64mb"}, c.args...)...)
			found, ok := examined(t, asLimiter(t, s, ""))
			f := found["persistence"]
			if !ok || f.Level != LevelNote {
				t.Errorf("ok %v, %+v", ok, f)
			}
			contains(t, f.Text, c.unknown, c.setting+` is not known: the user "limiter" may not ask for it; ask as one with +config|get`)
			if len(f.Do) != 1 || !strings.HasSuffix(f.Do[0], "CONFIG GET "+c.setting) {
				t.Errorf("to do: %q", f.Do)
			}
			found, _ = examined(t, asLimiter(t, s, "+config|get"))
			if f := found["persistence"]; !strings.Contains(f.Text, c.known) || strings.Contains(f.Text, "not known") {
				t.Errorf("with the right: %+v", f)
			}
		})
	}
}

// TestDoctorDoesNotGuessThatChargesAreRefused holds it of a failed snapshot after which Redis goes on: the script says that it does.
func TestDoctorDoesNotGuessThatChargesAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t, "--dir", dir, "--save", "3600 1", "--stop-writes-on-bgsave-error", "no")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	await.Until(t, patience, "a snapshot fails", func() bool {
		_ = s.Client().BgSave(context.Background()).Err()
		info, err := s.Client().Info(context.Background(), "persistence").Result()
		return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
	})
	o := asLimiter(t, s, "")
	found, ok := examined(t, o)
	if f := found["persistence"]; !ok || f.Level != LevelNote || found["script"].Level != LevelOK {
		t.Errorf("ok %v, %+v, %+v", ok, f, found["script"])
	}
	contains(t, found["persistence"].Text, "unless stop-writes-on-bgsave-error is no, every charge is refused", "ask as one with +config|get")
	set(t, s, "stop-writes-on-bgsave-error", "yes")
	if found, ok := examined(t, o); ok || found["persistence"].Level != LevelNote || !strings.Contains(found["script"].Text, "MISCONF") {
		t.Errorf("where it refuses: ok %v, %+v", ok, found["script"])
	}
}

// TestDoctorDoesNotGuessCoverage holds it of what a cluster does without one of its masters.
func TestDoctorDoesNotGuessCoverage(t *testing.T) {
	for _, yes := range []string{"yes", "no"} {
		s := redistest.StartAlone(t)
		set(t, s, "cluster-require-full-coverage", yes)
		found, _ := examined(t, asLimiter(t, s, redisstore.ClusterPrivilege))
		if f := found["coverage"]; f.Level != LevelNote || !strings.Contains(f.Text, "if cluster-require-full-coverage is yes, while one master is gone") {
			t.Errorf("%s: %+v", yes, f)
		}
	}
}
