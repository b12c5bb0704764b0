// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// authority issues certificates in a folder.
type authority struct {
	*certtest.Authority
	t   *testing.T
	dir string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.Authority = certtest.NewAuthority(t, a.file("ca.crt"), a.file("ca.key"))
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// authority.issue writes a certificate and its key to the files NAME.crt and NAME.key.
func (a *authority) issue(name string, template *x509.Certificate) {
	a.t.Helper()
	a.Issue(a.t, a.file(name+".crt"), a.file(name+".key"), template)
}

// secureServer starts a server that requires a password and a client certificate of the authority.
func secureServer(t *testing.T, a *authority) (server *redistest.Server, host string) {
	t.Helper()
	a.issue("server", &x509.Certificate{DNSNames: []string{"cache.example"}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	server = redistest.Start(t, "--tls-port", fmt.Sprint(port), "--bind", "127.0.0.1",
		"--tls-cert-file", a.file("server.crt"), "--tls-key-file", a.file("server.key"),
		"--tls-ca-cert-file", a.file("ca.crt"), "--tls-auth-clients", "yes")
	configure(t, server, "acl", "setuser", "me", "on", ">secret", "~*", "+@all")
	return server, fmt.Sprintf("127.0.0.1:%d", port)
}

func TestTLSWithClientCertificateAndPasswordFile(t *testing.T) {
	a := newAuthority(t)
	a.issue("client", &x509.Certificate{})
	server, host := secureServer(t, a)
	log := &eventually.Journal{}
	s := open(t, Options{URL: "rediss://" + host + "/1", Username: "me", PasswordFile: write(t, "secret\n"),
		CAFile: a.file("ca.crt"), CertFile: a.file("client.crt"), KeyFile: a.file("client.key"),
		ServerName: "cache.example", Logger: log.Logger()})
	callUntilAnswered(t, s)
	configure(t, server, "client", "kill", "type", "normal", "skipme", "yes")
	callUntilAnswered(t, s)
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log shows the password:\n%s", log.String())
	}
}

func TestTLSIsVerified(t *testing.T) {
	a := newAuthority(t)
	a.issue("client", &x509.Certificate{})
	_, host := secureServer(t, a)
	good := Options{URL: "rediss://me:secret@" + host, CAFile: a.file("ca.crt"), CertFile: a.file("client.crt"),
		KeyFile: a.file("client.key"), ServerName: "cache.example", Timeout: slowest}
	for _, test := range []struct {
		name, want string
		spoil      func(*Options)
	}{
		{"unknown authority", "unknown authority", func(o *Options) { o.CAFile = "" }},
		{"another name", "not other.example", func(o *Options) { o.ServerName = "other.example" }},
		{"no client certificate", "certificate required", func(o *Options) { o.CertFile, o.KeyFile = "", "" }},
		{"wrong password", "check username and password", func(o *Options) { o.Password = "wrong-secret" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			options, log := good, &eventually.Journal{}
			test.spoil(&options)
			options.Logger = log.Logger()
			s := open(t, options)
			callUntilFailure(t, s, test.want)
			callUntilOpen(t, s)
			waitUntil(t, "the log tells", func() bool { return strings.Contains(log.String(), "rate limit checks fail") })
			if strings.Contains(log.String(), "secret") {
				t.Errorf("the log shows the password:\n%s", log.String())
			}
		})
	}
	callUntilAnswered(t, open(t, good))
}

func TestWrongPassword(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "acl", "setuser", "me", "on", ">secret", "~*", "+@all")
	s := open(t, Options{URL: server.URL(), Username: "me", Password: "wrong"})
	callUntilFailure(t, s, "check username and password")
	if err := s.Check(context.Background()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("check: error %v, want WRONGPASS", err)
	}
}

func TestMissingPassword(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "config", "set", "requirepass", "secret")
	s := open(t, Options{URL: server.URL()})
	callUntilFailure(t, s, "check username and password")
	callUntilOpen(t, s)
	callUntilAnswered(t, open(t, Options{URL: server.URL(), Password: "secret"}))
}
