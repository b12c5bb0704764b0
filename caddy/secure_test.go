// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestRedisOverTLSWithSecretsFromElsewhere uses a Redis that requires a client certificate, a user
// and a password. The password is in the environment or in a file. Without the certificate nothing
// is counted.
func TestRedisOverTLSWithSecretsFromElsewhere(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ca := certtest.NewAuthority(t, file("ca.crt"), file("ca.key"))
	for _, name := range []string{"server", "client"} {
		ca.Issue(t, file(name+".crt"), file(name+".key"), &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	}
	address := "127.0.0.1:" + strconv.Itoa(freePort(t))
	_, port, _ := net.SplitHostPort(address)
	redis := redistest.Start(t, "--tls-port", port, "--bind", "127.0.0.1", "--tls-cert-file", file("server.crt"),
		"--tls-key-file", file("server.key"), "--tls-ca-cert-file", file("ca.crt"), "--tls-auth-clients", "yes")
	if err := redis.Client().Do(context.Background(), "acl", "setuser", "limiter", "on", ">secret", "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_TEST_PASSWORD", "secret")
	if err := os.WriteFile(file("password"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(url, words string) string {
		return `{
			penstock {
				name shop
				on_error deny
				store redis ` + url + ` {
					ca ` + file("ca.crt") + `
					timeout 10s
					` + words + `
				}
			}
		}
		:PORT {
			penstock 1/30d
			respond "ok"
		}`
	}
	pair := "cert " + file("client.crt") + "\n key " + file("client.key") + "\n"
	plain := "rediss://limiter@" + address + "/0"
	s := start(t, ":PORT {\n respond ok\n}")
	for name, c := range map[string]struct{ config, want string }{
		"password in the URL":   {config("rediss://limiter:{env.PENSTOCK_TEST_PASSWORD}@"+address+"/0", pair), "200 429"},
		"password in the block": {config(plain, pair+"password {env.PENSTOCK_TEST_PASSWORD}"), "200 429"},
		"password_file":         {config(plain, pair+"password_file "+file("password")), "200 429"},
		"file placeholder":      {config(plain, pair+"password {file."+file("password")+"}"), "200 429"},
		"no certificate":        {config(plain, "password_file "+file("password")), "503 503"},
		"another name":          {config(plain, pair+"password_file "+file("password")+"\n server_name other.example"), "503 503"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := redis.Client().FlushAll(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
			if err := s.load(c.config); err != nil {
				t.Fatal(err)
			}
			equal(t, "statuses", s.statuses(2, "/"), c.want)
		})
	}
}

// TestASecretIsExchangedInItsFile: the contents of secret files are part of the settings, so
// reloading the same configuration picks up a new password.
func TestASecretIsExchangedInItsFile(t *testing.T) {
	redis := redistest.Start(t)
	password := filepath.Join(t.TempDir(), "password")
	exchange := func(secret string) {
		t.Helper()
		for _, command := range [][]any{{"acl", "setuser", "limiter", "reset", "on", ">" + secret, "~*", "+@all"},
			{"client", "kill", "user", "limiter"}} {
			if err := redis.Client().Do(context.Background(), command...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(password, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exchange("first")
	config := `{
		penstock {
			name shop
			on_error deny
			store redis ` + redis.URL() + ` {
				username limiter
				password_file ` + password + `
				timeout 1s
			}
		}
	}
	:PORT {
		penstock 3/30d
		respond "ok"
	}`
	s := start(t, config)
	equal(t, "with the first password", s.statuses(1, "/"), "200")
	exchange("second")
	if err := s.load(config); err != nil {
		t.Fatal(err)
	}
	equal(t, "after a reload with the second", s.statuses(3, "/"), "200 200 429")
}
