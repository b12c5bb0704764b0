// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// environmentOf returns a getenv function for an environment that has only the given variables,
// written NAME=VALUE.
func environmentOf(variables string) (getenv func(name string) string) {
	env := map[string]string{}
	for pair := range strings.FieldsSeq(variables) {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return func(name string) string { return env[name] }
}

// bridgeRejects starts a bridge with one environment variable, written NAME=VALUE, and some flags.
// It fails the test unless the bridge returns an error that contains the given text and no secret.
func bridgeRejects(t *testing.T, env, args, want string) {
	t.Helper()
	name, value, _ := strings.Cut(env, "=")
	if name != "" {
		t.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	cmd := newBridge()
	cmd.SetErr(io.Discard)
	cmd.SetOut(io.Discard)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(strings.Fields(args))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := cmd.ExecuteContext(ctx)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%s penstock bridge %s: %v, want %q", env, args, err, want)
	}
}

// TestBridgeRejectsModes tests that the error for each impossible combination of variables and
// flags names the remedy.
func TestBridgeRejectsModes(t *testing.T) {
	for _, c := range []struct{ env, args, want string }{
		{"REDIS_MODE=ring", "", "REDIS_ADDRS is not set"},
		{"REDIS_MODE=chain", "", "standalone (or single), sentinel, cluster or ring"},
		{"REDIS_MODE=cluster", "", "REDIS_ADDRS is not set"},
		{"REDIS_MODE=sentinel", "--redis-master m", "REDIS_ADDRS is not set"},
		{"REDIS_ADDRS=a:1,b:2", "", "set REDIS_MODE to one of them"},
		{"REDIS_MASTER=m", "", "REDIS_MASTER are given without a Redis; write --redis"},
		{"REDIS_SENTINEL_PASSWORD=secret", "", "REDIS_SENTINEL_PASSWORD or REDIS_MASTER are given without a Redis; write --redis"},
		{"REDIS_ADDRS=a:1,b:2", "--redis-mode single", `and the mode is "single"`},
		{"REDIS_MODE=cluster", "--redis-mode ring", "--redis-mode is ring, and REDIS_ADDRS is not set"},
		{"", "--redis-mode ring --redis redis://a", "name all of them"},
		{"", "--redis-mode sentinel --redis-addrs a:1,b:2", "master is missing"},
		{"", "--redis-mode cluster --redis-addrs a:1,redis://secret@b:2", "addrs[1] is not a host:port"},
		{"", "--redis-addrs a:1,b:2", "write mode cluster"},
		{"", "--redis redis://a?read_from_replicas=true", "limits would not hold"},
	} {
		bridgeRejects(t, c.env, c.args, c.want)
	}
}

// TestModeFlagWinsOverVariable tests that a flag overrides a variable that contradicts it, and that
// the log reports the contradiction.
func TestModeFlagWinsOverVariable(t *testing.T) {
	for _, c := range []struct{ env, mode, want string }{
		{"REDIS_MODE=cluster REDIS_ADDRS=a:1,b:2", "ring", "ring a:1 b:2 told"},
		{"REDIS_MODE=cluster REDIS_ADDRS=a:1,b:2", "cluster", "cluster a:1 b:2"},
		{"REDIS_MODE=cluster REDIS_ADDRS=a:1,b:2 REDIS_MASTER=m", "sentinel", "sentinel a:1 b:2 m told"},
		{"REDIS_MODE=cluster REDIS_ADDR=a:1", "single", "single redis://a:1 told"},
		{"REDIS_MODE=standalone REDIS_ADDR=a:1", "single", "single redis://a:1"},
		{"REDIS_MODE=single REDIS_ADDR=a:1", "single", "single redis://a:1"},
		{"REDIS_MODE=single REDIS_ADDR=a:1", "", "redis://a:1"},
		{"REDIS_MODE=single REDIS_ADDR=a:1", "cluster", "cluster redis://a:1 told"},
		{"REDIS_MODE=standalone REDIS_ADDR=a:1", "cluster", "cluster redis://a:1 told"},
		{"REDIS_ADDR=a:1", "cluster", "cluster redis://a:1"},
		{"REDIS_ADDRS=a:1,b:2", "ring", "ring a:1 b:2"},
	} {
		var log strings.Builder
		f := new(bridgeFlags)
		f.redis.Mode = c.mode
		if err := f.redisFrom(environmentOf(c.env), slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Errorf("%s --redis-mode %s: %v", c.env, c.mode, err)
		}
		o := &f.redis
		words := append([]string{o.Mode, o.URL}, append(o.Addrs, o.Master)...)
		if strings.Contains(log.String(), "--redis-mode is given, so REDIS_MODE is ignored") {
			words = append(words, "told")
		}
		if got := strings.Join(strings.Fields(strings.Join(words, " ")), " "); got != c.want {
			t.Errorf("%s --redis-mode %s: %q, want %q; log:\n%s", c.env, c.mode, got, c.want, log.String())
		}
	}
}
