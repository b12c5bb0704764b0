// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestSharedSecret: the first proposal becomes the secret of all nodes, even for a user of least
// privilege. A stored value that is too short is an error.
func TestSharedSecret(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, append([]any{"acl", "setuser", "penstock", "on", ">secret"}, leastPrivilege()...)...)
	first := open(t, Options{URL: server.URL(), Username: "penstock", Password: "secret", Timeout: TimeoutMax})
	second := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	a, b := strings.Repeat("a", secretBytesMin), strings.Repeat("b", secretBytesMin)
	shared := func(s *Store, proposal, want string) {
		t.Helper()
		if got, err := s.SharedSecret(context.Background(), proposal); got != want || err != nil {
			t.Errorf("%q proposed: %q, %v; want %q", proposal, got, err, want)
		}
	}
	shared(first, a, a)
	shared(second, b, a)
	configure(t, server, "set", secretKey, b)
	shared(first, a, b)
	configure(t, server, "set", secretKey, "short")
	if _, err := first.SharedSecret(context.Background(), a); err == nil || strings.Contains(err.Error(), `"short"`) {
		t.Errorf("a short secret: %v", err)
	}
	server.Kill()
	if _, err := first.SharedSecret(context.Background(), a); err == nil {
		t.Error("no error without Redis")
	}
}

func TestSharedSecretInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	s := openCluster(t, c, Options{Timeout: TimeoutMax})
	secret := strings.Repeat("a", secretBytesMin)
	waitUntil(t, "the cluster has a secret", func() bool {
		got, err := s.SharedSecret(context.Background(), secret)
		return err == nil && got == secret
	})
}
