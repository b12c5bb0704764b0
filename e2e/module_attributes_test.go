// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/freeport"
)

// mutualTLS is the transport of a listener that requires a certificate of the client. FOLDER stands
// for the folder of the certificates.
const mutualTLS = `{transport_socket: {name: envoy.transport_sockets.tls, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, require_client_certificate: true,
    common_tls_context: {tls_certificates: [{certificate_chain: {filename: FOLDER/server.pem}, private_key: {filename: FOLDER/server.key}}],
      validation_context: {trusted_ca: {filename: FOLDER/ca.pem}}}}}, `

// tlsInspector is a listener filter that reads the name of the server that a client requests.
const tlsInspector = `listener_filters: [{name: tls_inspector, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}], `

// TestModuleReadsAttributes tests that the module has the right number for each attribute of Envoy.
// The policy has a rule for each attribute, which applies if the attribute has the expected value.
func TestModuleReadsAttributes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	ca := certtest.NewAuthority(t, file("ca.pem"), file("ca.key"))
	for _, name := range []string{"server", "client"} {
		id := &url.URL{Scheme: "spiffe", Host: "test", Path: "/" + name}
		ca.Issue(t, file(name+".pem"), file(name+".key"), &x509.Certificate{DNSNames: []string{name + ".example"}, URIs: []*url.URL{id}})
	}
	client := certtest.Mutual(t, folder, "client")
	client.ServerName = "server.example"
	digest := sha256.Sum256(client.Certificates[0].Certificate[0])
	s := &site{}
	values := map[string]string{"request.path": "/a?b=c", "request.url_path": "/a", "request.host": "", "request.scheme": "https",
		"request.method": "GET", "request.referer": "http://r.example/", "request.useragent": "tester", "request.id": "*-*-*-*-*",
		"request.protocol": "HTTP/1.1", "request.query": "b=c", "source.address": "127.0.0.1:*", "source.port": "*", "destination.address": "",
		"destination.port": "", "connection.id": "*", "connection.mtls": "true", "connection.requested_server_name": "server.example",
		"connection.tls_version": "TLSv1.3", "connection.subject_local_certificate": "CN=server", "connection.subject_peer_certificate": "CN=client",
		"connection.dns_san_local_certificate": "server.example", "connection.dns_san_peer_certificate": "client.example",
		"connection.uri_san_local_certificate": "spiffe://test/server", "connection.uri_san_peer_certificate": "spiffe://test/client",
		"connection.sha256_peer_certificate_digest": fmt.Sprintf("%x", digest)}
	const missingIn138 = "connection.requested_server_name"
	if out, err := exec.Command(envoyProgram, "--version").Output(); err == nil && strings.Contains(string(out), "/1.38.") {
		delete(values, missingIn138)
		if text := envoyRejects(t, "name: a\nrules: [{name: r, match: {attr: {"+missingIn138+": [x]}}, limit: 1/1m}]"); !strings.Contains(text, "use Envoy 1.39") {
			t.Errorf("Envoy 1.38 does not give %s: %s", missingIn138, text)
		}
	}
	policy := func() string {
		values["request.host"], values["destination.address"], values["destination.port"] = s.address, s.address, portOf(s.address)
		text := "name: shop\nrules:\n"
		for name, value := range values {
			text += fmt.Sprintf("- {name: %q, match: {attr: {%s: [%q]}}, limit: 9/31d}\n", strings.NewReplacer(".", "-", "_", "-").Replace(name), name, value)
		}
		return text
	}
	s.filter = moduleFilter("POLICY_OF_THE_TEST")
	e := &envoy{admin: freeport.Address(t)}
	text := e.configuration(t, "", startUpstream(t, nil), []*site{s})
	text = strings.NewReplacer(strconv.Quote("POLICY_OF_THE_TEST"), strconv.Quote(policy()),
		"filter_chains: [{filters:", tlsInspector+"filter_chains: ["+strings.ReplaceAll(mutualTLS, "FOLDER", folder)+"filters:").Replace(text)
	configuration := file("envoy.yaml")
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e.run(t, configuration, "--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart")
	a, err := ask(&http.Client{Transport: &http.Transport{TLSClientConfig: client, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}},
		"https://"+s.address+"/a?b=c", "Referer", "http://r.example/", "User-Agent", "tester")
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, %v", a.status, err)
	}
	var missing []string
	for name := range values {
		if !strings.Contains(a.header.Get("RateLimit-Policy"), strconv.Quote(strings.NewReplacer(".", "-", "_", "-").Replace(name))) {
			missing = append(missing, name)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("no rule applies for %q: %s", missing, a.header.Get("RateLimit-Policy"))
	}
}
