// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// quicListener configures an HTTP/3 listener of Envoy, with the filter of the first site.
const quicListener = `  - {name: quic, address: {socket_address: {protocol: UDP, address: 127.0.0.1, port_value: PORT}}, udp_listener_config: {quic_options: {}},
    filter_chains: [{
      transport_socket: {name: envoy.transport_sockets.quic, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport,
        downstream_tls_context: {common_tls_context: {tls_certificates: [{certificate_chain: {filename: CERT}, private_key: {filename: KEY}}]}}}},
      filters: [{name: envoy.filters.network.http_connection_manager, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
        codec_type: HTTP3, stat_prefix: quic, use_remote_address: true, normalize_path: false,
        route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: upstream}}]}]},
        http_filters: [FILTER, {name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}
`

// startEnvoyWithQUIC is [startEnvoy] with an additional listener for HTTP/3.
func startEnvoyWithQUIC(t testing.TB, quic string, up *countingUpstream, sites ...*site) *envoy {
	t.Helper()
	program, dir := wasm(t), t.TempDir()
	e := &envoy{admin: freeport.Address(t)}
	text := e.configuration(t, program, up.address, sites)
	filter := strings.Replace(either(sites[0].filter, wasmFilter), "WASM_CONFIG", wasmConfig, 1)
	filter = strings.NewReplacer("SETTINGS", sites[0].settings(), "WASM_FILE", program).Replace(filter)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certtest.SelfSigned(t, cert, key, &x509.Certificate{DNSNames: []string{"localhost"}})
	text = strings.Replace(text, "  clusters:\n", strings.NewReplacer("PORT", portOf(quic), "CERT", cert, "KEY", key, "FILTER", filter).Replace(quicListener)+
		"  clusters:\n", 1)
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command := envoyCommand(t, file)
	command.Env = append(os.Environ(), modulePath(t))
	e.server = startServer(t, command)
	eventually.Until(t, envoyPatience, "Envoy is ready", func() bool {
		e.mustRun()
		response, err := http.Get("http://" + e.admin + "/ready")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return e
}

// quicClient returns an HTTP/3 client at the attacker's address, with its own connections.
func (a *attackRun) quicClient() *http3.Transport {
	a.Helper()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(a.from)})
	if err != nil {
		a.Fatal(err)
	}
	transport := &quic.Transport{Conn: socket}
	client := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"},
		Dial: func(ctx context.Context, _ string, config *tls.Config, options *quic.Config) (*quic.Conn, error) {
			to, err := net.ResolveUDPAddr("udp", a.front.quic)
			if err != nil {
				return nil, err
			}
			return transport.DialEarly(ctx, to, config, options)
		}}
	a.Cleanup(func() { _ = client.Close(); _ = transport.Close(); _ = socket.Close() })
	return client
}

// quicBurst sends HTTP/3 requests on several connections at once, each on a stream of its own. If
// leaveAfter is not 0, it cancels all of them after that time.
func (a *attackRun) quicBurst(connections, streams int, leaveAfter time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if leaveAfter > 0 {
		ctx, cancel = context.WithTimeout(ctx, leaveAfter)
		defer cancel()
	}
	var group sync.WaitGroup
	for range connections {
		client := a.quicClient()
		for range streams {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://localhost:"+portOf(a.front.quic)+a.attack.path, nil)
			if err != nil {
				a.Fatal(err)
			}
			a.sent++
			group.Go(func() {
				if response, err := client.RoundTrip(request); err == nil {
					discard(response.Body)
				}
			})
		}
	}
	group.Wait()
}

// quicWebSockets opens WebSockets, one after the other on one connection, with extended CONNECT
// requests (RFC 9220). The proxy forwards each of them as a GET.
func (a *attackRun) quicWebSockets(count int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := a.quicClient()
	connection, err := client.Dial(ctx, "", http3.ConfigureTLSConfig(client.TLSClientConfig), new(quic.Config))
	if err != nil {
		a.Fatal(err)
	}
	session := client.NewClientConn(connection)
	for range count {
		request, err := http.NewRequestWithContext(ctx, http.MethodConnect, "https://localhost:"+portOf(a.front.quic)+a.attack.path, nil)
		if err != nil {
			a.Fatal(err)
		}
		request.Proto = "websocket"
		stream, err := session.OpenRequestStream(ctx)
		if err != nil {
			return // the front has closed the connection after the previous denial
		}
		a.sent++
		if stream.SendRequestHeader(request) == nil {
			_, _ = stream.ReadResponse()
		}
		_ = stream.Close()
		stream.CancelRead(0)
	}
}
