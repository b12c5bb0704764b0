// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/certtest"
)

// authority is a certificate authority that writes certificates for this machine to a folder.
type authority struct {
	*certtest.Authority
	folder string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	folder := t.TempDir()
	return &authority{certtest.NewAuthority(t, filepath.Join(folder, "ca.pem"), filepath.Join(folder, "ca.key")), folder}
}

// authority.issue creates a certificate, and writes it to NAME.pem and its key to NAME.key.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(a.folder, name+".pem"), filepath.Join(a.folder, name+".key")
	a.Issue(t, cert, key, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	return cert, key
}

// TestBridgeWithClientCertificates tests that a bridge that other machines can reach admits only
// clients with a certificate that the authority signed.
func TestBridgeWithClientCertificates(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	ca := filepath.Join(a.folder, "ca.pem")
	cert, key := a.issue(t, "bridge")
	r := startBridge(t, "--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key, "--client-ca", ca)
	_, port, err := net.SplitHostPort(r.address)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parseFile(t, ca))
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

func parseFile(t *testing.T, file string) *x509.Certificate {
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
	p, err := tls.LoadX509KeyPair(a.issue(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
