// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue creates a certificate and its key, and writes them to the files NAME.crt and NAME.key. The
// first certificate that an authority issues is its own and is self-signed.
func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(a.file(name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key
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
	working(t, s)
	configure(t, server, "client", "kill", "type", "normal", "skipme", "yes")
	working(t, s)
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
			failing(t, s, test.want)
			opens(t, s)
			waitUntil(t, "the log tells", func() bool { return strings.Contains(log.String(), "rate limit checks fail") })
			if strings.Contains(log.String(), "secret") {
				t.Errorf("the log shows the password:\n%s", log.String())
			}
		})
	}
	working(t, open(t, good))
}

func TestWrongPassword(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "acl", "setuser", "me", "on", ">secret", "~*", "+@all")
	s := open(t, Options{URL: server.URL(), Username: "me", Password: "wrong"})
	failing(t, s, "check username and password")
	if err := s.Check(context.Background()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("check: error %v, want WRONGPASS", err)
	}
}

func TestMissingPassword(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server, "config", "set", "requirepass", "secret")
	s := open(t, Options{URL: server.URL()})
	failing(t, s, "check username and password")
	opens(t, s)
	working(t, open(t, Options{URL: server.URL(), Password: "secret"}))
}
