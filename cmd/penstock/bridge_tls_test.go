// SPDX-License-Identifier: Apache-2.0

package main

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
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	t      *testing.T
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// issue writes NAME.pem and NAME.key, signed by the authority, or self-signed if the authority has
// no key yet.
func (a *authority) issue(name string) (cert, key string) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: a.key == nil, BasicConstraintsValid: true}
	parent, signer := a.cert, a.key
	if a.key == nil {
		parent, signer = c, private
		a.cert, a.key = c, private
	}
	signed, err := x509.CreateCertificate(rand.Reader, c, parent, &private.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, key = filepath.Join(a.folder, name+".pem"), filepath.Join(a.folder, name+".key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key
}

// TestBridgeWithClientCertificates listens for other machines, and admits clients whose certificate
// the authority signed.
func TestBridgeWithClientCertificates(t *testing.T) {
	a, other := &authority{t: t, folder: t.TempDir()}, &authority{t: t, folder: t.TempDir()}
	ca, _ := a.issue("ca")
	other.issue("ca")
	cert, key := a.issue("bridge")
	r := bridging(t, "--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", ca)
	_, port, err := net.SplitHostPort(r.address)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed(t, ca))
	ask := func(protocol string, certificates ...tls.Certificate) string {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(protocol == "HTTP/1.1")
		protocols.SetHTTP2(protocol == "HTTP/2.0")
		client := &http.Client{Transport: &http.Transport{Protocols: protocols,
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certificates}}}
		response, err := client.Post("https://127.0.0.1:"+port+"/v1/check", "application/json", strings.NewReader(`{}`))
		if err != nil {
			return "refused"
		}
		response.Body.Close()
		return response.Status + " " + response.Proto
	}
	known, stranger := pair(t, a, "envoy"), pair(t, other, "stranger")
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		if got := ask(protocol, known); got != "200 OK "+protocol {
			t.Error(got)
		}
		if got := ask(protocol); got != "refused" {
			t.Errorf("without a certificate: %s", got)
		}
		if got := ask(protocol, stranger); got != "refused" {
			t.Errorf("with another authority's certificate: %s", got)
		}
	}
}

func parsed(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func pair(t *testing.T, a *authority, name string) tls.Certificate {
	t.Helper()
	p, err := tls.LoadX509KeyPair(a.issue(name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
