// SPDX-License-Identifier: Apache-2.0

// Package certtest writes certificates and their keys to PEM files for tests over TLS. The
// certificates are valid for an hour.
//
// Each certificate has a new ECDSA key. A test that needs nothing but an HTTPS server should use
// httptest.NewTLSServer instead.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Authority signs certificates. Make it with [NewAuthority].
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority writes the self-signed certificate of a new authority, and its key.
func NewAuthority(t testing.TB, certFile, keyFile string) *Authority {
	t.Helper()
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	return &Authority{template, write(t, certFile, keyFile, template, nil)}
}

// Issue writes a certificate that the authority signs, and its key. The template needs only the
// names and addresses of the certificate. A missing serial number, subject or time is filled in.
func (a *Authority) Issue(t testing.TB, certFile, keyFile string, template *x509.Certificate) {
	t.Helper()
	write(t, certFile, keyFile, template, a)
}

// SelfSigned writes a self-signed certificate, and its key. The template is as for
// [Authority.Issue].
func SelfSigned(t testing.TB, certFile, keyFile string, template *x509.Certificate) {
	t.Helper()
	write(t, certFile, keyFile, template, nil)
}

// Region returns the template of a certificate for a region's agent that runs on this machine.
func Region(name string) *x509.Certificate {
	return &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: []*url.URL{{Scheme: "penstock", Opaque: "region:" + name}}}
}

// Mutual returns a TLS configuration, for the client or the server, with which both ends of a
// connection must show certificates. The folder contains ca.pem of the authority, and NAME.pem and
// NAME.key of this end.
func Mutual(t testing.TB, folder, name string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, name+".pem"), filepath.Join(folder, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert}
}

// write completes the template, writes the certificate and its key, and returns the key. The
// certificate is signed by the given authority, or self-signed if the authority is nil.
func write(t testing.TB, certFile, keyFile string, template *x509.Certificate, by *Authority) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if template.SerialNumber == nil {
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
	}
	if template.Subject.CommonName == "" {
		name := filepath.Base(certFile)
		template.Subject = pkix.Name{CommonName: strings.TrimSuffix(name, filepath.Ext(name))}
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	if by == nil {
		by = &Authority{template, key}
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, by.certificate, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: certificate}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
