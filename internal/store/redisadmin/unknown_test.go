// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// grantLimiter creates the user "limiter" on a server, with the rights of docs/guides/redis.md and
// additional ones.
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

// limiterOptions returns options for a server, with the user that [grantLimiter] creates.
func limiterOptions(t *testing.T, s *redistest.Server, more string) Options {
	t.Helper()
	grantLimiter(t, s, more)
	o := optionsFor(s.URL())
	o.Redis.Username, o.Redis.Password = "limiter", "secret-secret"
	return o
}

// TestDoctorDoesNotGuessSettings: a setting that the limiter's user may not read is reported as
// unknown. After the user has been given the right that the doctor names, the actual setting is
// reported.
func TestDoctorDoesNotGuessSettings(t *testing.T) {
	for _, c := range []struct {
		name             string
		args             []string
		unknown, setting string
		known            string
	}{
		{name: "snapshots", args: []string{"--save", "60 1000"}, unknown: "as old as the last snapshot, or forgotten if none is made", setting: "save", known: "snapshots only"},
		{name: "off", unknown: "as old as the last snapshot, or forgotten if none is made", setting: "save", known: "off: a restart forgets every counter"},
		{name: "always", args: []string{"--appendonly", "yes", "--appendfsync", "always"}, unknown: "with appendfsync always each charge waits", setting: "appendfsync",
			known: "appendonly with appendfsync always"},
		{name: "everysec", args: []string{"--appendonly", "yes"}, unknown: "with appendfsync always each charge waits", setting: "appendfsync", known: "about the last second are forgotten"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t, append([]string{"--maxmemory", "64mb"}, c.args...)...)
			found, ok := examined(t, limiterOptions(t, s, ""))
			f := found["persistence"]
			if !ok || f.Level != LevelNote {
				t.Errorf("ok %v, %+v", ok, f)
			}
			contains(t, f.Text, c.unknown, c.setting+` is not known: the user "limiter" may not ask for it; ask as one with +config|get`)
			if len(f.Do) != 1 || !strings.HasSuffix(f.Do[0], "CONFIG GET "+c.setting) {
				t.Errorf("to do: %q", f.Do)
			}
			found, _ = examined(t, limiterOptions(t, s, "+config|get"))
			if f := found["persistence"]; !strings.Contains(f.Text, c.known) || strings.Contains(f.Text, "not known") {
				t.Errorf("with the right: %+v", f)
			}
		})
	}
}

// TestDoctorDoesNotGuessThatChargesFail: after a failed snapshot Redis might still accept
// writes. The doctor tests this with the script.
func TestDoctorDoesNotGuessThatChargesFail(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := redistest.Start(t, "--dir", dir, "--save", "3600 1", "--stop-writes-on-bgsave-error", "no")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "a snapshot fails", func() bool {
		_ = s.Client().BgSave(context.Background()).Err()
		info, err := s.Client().Info(context.Background(), "persistence").Result()
		return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
	})
	o := limiterOptions(t, s, "")
	found, ok := examined(t, o)
	if f := found["persistence"]; !ok || f.Level != LevelNote || found["script"].Level != LevelOK {
		t.Errorf("ok %v, %+v, %+v", ok, f, found["script"])
	}
	contains(t, found["persistence"].Text, "unless stop-writes-on-bgsave-error is no, Redis rejects every charge", "ask as one with +config|get")
	set(t, s, "stop-writes-on-bgsave-error", "yes")
	if found, ok := examined(t, o); ok || found["persistence"].Level != LevelNote || !strings.Contains(found["script"].Text, "MISCONF") {
		t.Errorf("where it refuses: ok %v, %+v", ok, found["script"])
	}
}

// TestDoctorDoesNotGuessCoverage: if the setting for a cluster that has lost a master cannot be
// read, the doctor reports it as unknown.
func TestDoctorDoesNotGuessCoverage(t *testing.T) {
	t.Parallel()
	for _, yes := range []string{"yes", "no"} {
		s := redistest.StartAlone(t)
		set(t, s, "cluster-require-full-coverage", yes)
		found, _ := examined(t, limiterOptions(t, s, redisstore.ClusterPrivilege))
		if f := found["coverage"]; f.Level != LevelNote || !strings.Contains(f.Text, "if cluster-require-full-coverage is yes, while a master is down") {
			t.Errorf("%s: %+v", yes, f)
		}
	}
}
