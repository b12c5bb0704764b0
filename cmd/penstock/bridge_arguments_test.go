// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// TestArgumentsThatShow tests that a secret in the command line causes a warning, and that the
// warning does not contain the secret.
func TestArgumentsThatShow(t *testing.T) {
	for _, c := range []struct {
		token, redis string
		want         []string
	}{
		{"0123456789abcdef", "", []string{"--token-file"}},
		{"{env.TOKEN}", "redis://user@localhost", nil},
		{"", "redis://user:hush@localhost", []string{"--redis-password-file"}},
		{"0123456789abcdef", "redis://:hush@localhost", []string{"--token-file", "--redis-password-file"}},
		{"", "redis://localhost", nil},
	} {
		f, said := &bridgeFlags{token: c.token}, new(eventually.Journal)
		f.redis.URL = c.redis
		f.warnOfArguments(said.Logger())
		text := said.String()
		if n := strings.Count(text, "list of processes"); n != len(c.want) || strings.Contains(text, "hush") || strings.Contains(text, "0123456789abcdef") {
			t.Errorf("%v: %d lines:\n%s", c, n, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%v: no %s in\n%s", c, want, text)
			}
		}
	}
}

// TestOneFamilyIsOne tests that a listener on 0.0.0.0 does not accept IPv6 connections.
func TestOneFamilyIsOne(t *testing.T) {
	r := startBridge(t, "--listen", "0.0.0.0:0", "--token", "0123456789abcdef")
	r.eventually("--token is visible to every user")
	_, port, err := net.SplitHostPort(r.address)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "::1": false} {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
		if err == nil {
			conn.Close()
		}
	}
}
