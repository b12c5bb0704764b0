// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// bridgeRefuses starts a bridge with a variable NAME=VALUE and flags, and wants an error that says something and no secret.
func bridgeRefuses(t *testing.T, env, args, want string) {
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

// TestBridgeRefusesModes: what cannot be is said, with the remedy.
func TestBridgeRefusesModes(t *testing.T) {
	for _, c := range []struct{ env, args, want string }{
		{"REDIS_MODE=ring", "", "REDIS_ADDRS is not set"},
		{"REDIS_MODE=chain", "", "standalone, sentinel, cluster or ring"},
		{"REDIS_MODE=cluster", "", "REDIS_ADDRS is not set"},
		{"REDIS_MODE=sentinel", "--redis-master m", "REDIS_ADDRS is not set"},
		{"REDIS_MODE=single", "", "standalone"},
		{"REDIS_ADDRS=a:1,b:2", "", "REDIS_MODE=cluster"},
		{"", "--redis-mode ring --redis redis://a", "name all of them"},
		{"", "--redis-mode sentinel --redis-addrs a:1,b:2", "master is missing"},
		{"", "--redis-mode cluster --redis-addrs a:1,redis://secret@b:2", "addrs[1] is no host:port"},
		{"", "--redis-addrs a:1,b:2", "write mode cluster"},
		{"", "--redis redis://a?read_from_replicas=true", "limits would not hold"},
	} {
		bridgeRefuses(t, c.env, c.args, c.want)
	}
}
