// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/s3test"
)

// TestRedisBackup: a backup in a file, on standard output and in S3 brings back all that requests
// left in Redis. The user has the rights that the guide names, and no others.
func TestRedisBackup(t *testing.T) {
	s := redistest.StartTCP(t)
	rights := "on >secret ~rl1:* -@all +ping +info +select +script|load +evalsha +client|setname +time +get +set +del +pexpire +zadd +zcount +zrange " +
		"+zrangebyscore +zremrangebyrank +zremrangebyscore +scan +getrange +pttl +type +exists +persist +zscore"
	command := []any{"ACL", "SETUSER", "limiter"}
	for right := range strings.FieldsSeq(rights) {
		command = append(command, right)
	}
	if err := s.Client().Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/export", "/month", "/search", "/search", "/search", "/search", "/search"} {
		charge(t, s, path, 1)
	}
	before := contents(t, s)
	bucket := s3test.Start(t)
	for _, pair := range s3test.Environment() {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	url := "redis://limiter:secret@" + s.Addr
	to := filepath.Join(t.TempDir(), "counters.txt")
	text, said, err := run(t, "", "redis", "backup", "-", "--redis", url)
	if err != nil || !strings.Contains(said, " counters\n") {
		t.Fatalf("%v: %s", err, said)
	}
	for _, f := range [][]string{{file(t, "copy.txt", text)}, {to}, {"s3://" + s3test.Bucket + "/redis/2026-11-26.txt", "--s3-endpoint", bucket.URL()}} {
		if f[0] == to || len(f) > 1 {
			if _, _, err := run(t, "", append([]string{"redis", "backup", "--redis", url}, f...)...); err != nil {
				t.Fatalf("%s: %v", f[0], err)
			}
		}
		if err := s.Client().FlushDB(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		restore := append([]string{"redis", "restore", "--redis", url}, f...)
		out, _, err := run(t, "", append(restore, "--dry-run")...)
		if err != nil || !strings.HasPrefix(out, "would restore the backup of 2") || len(contents(t, s)) > 0 {
			t.Errorf("%s: %v: %s", f[0], err, out)
		}
		out, _, err = run(t, "", restore...)
		if err != nil || !strings.Contains(out, " 0 raised, 0 kept because as much is used there, 0 over\n") {
			t.Errorf("%s: %v: %s", f[0], err, out)
		}
		if diff := cmp.Diff(before, contents(t, s)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", f[0], diff)
		}
	}
	if mode, err := os.Stat(to); err != nil || mode.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", mode, err)
	}
}

// TestRedisRestoreNamesItsRights: a restore as a user with the rights of the store alone fails, and
// names the rights that the user lacks.
func TestRedisRestoreNamesItsRights(t *testing.T) {
	s := redistest.StartTCP(t)
	charge(t, s, "/search", 1)
	text, said, err := run(t, "", "redis", "backup", "-", "--redis", "redis://"+s.Addr)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	command := []any{"ACL", "SETUSER", "limiter", "on", ">secret"}
	for right := range strings.FieldsSeq(redisstore.LeastPrivilege) {
		command = append(command, right)
	}
	if err := s.Client().Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(err)
	}
	_, _, err = run(t, "", "redis", "restore", file(t, "copy.txt", text), "--redis", "redis://limiter:secret@"+s.Addr)
	if err == nil || !strings.Contains(err.Error(), "a restore needs +type +exists +pttl +persist +zscore") {
		t.Errorf("error %v", err)
	}
}

func TestRedisBackupRejectsMeaninglessArguments(t *testing.T) {
	url := redistest.Start(t).URL()
	short := file(t, "short.txt", "penstock redis backup 1")
	for want, args := range map[string][]string{
		"backup takes one FILE":          {"backup"},
		"restore takes one FILE":         {"restore", "a", "b"},
		"restore reads the backup twice": {"restore", "-"},
		"bytes are altered or missing":   {"restore", short},
		"no such file":                   {"restore", "none.txt"},
		"go with a file s3://BUCKET/KEY": {"backup", "a", "--s3-region", "eu-central-1"},
		"names no object":                {"backup", "s3://bucket"},
		"without encryption":             {"backup", "s3://bucket/key", "--s3-endpoint", "http://192.0.2.7"},
		"no such file or directory":      {"backup", "none/there/counters.txt"},
	} {
		args = append([]string{"redis"}, append(args, "--redis", url)...)
		if _, _, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
