// SPDX-License-Identifier: Apache-2.0

package ecds

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extension "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/internal/test/eventually"
)

// proxy stands for an Envoy proxy. It is the client's end of a stream.
type proxy struct {
	t      *testing.T
	stream extension.ExtensionConfigDiscoveryService_StreamExtensionConfigsClient
	heard  chan *discovery.DiscoveryResponse
	ended  chan error // the error with which the stream ended
}

// startServer returns a server, the journal of its log, and a function that connects an Envoy to
// it.
func startServer(t *testing.T, o Options) (*Server, *eventually.Journal, func() *proxy) {
	t.Helper()
	said := new(eventually.Journal)
	s, err := New(o, said.Logger())
	if err != nil {
		t.Fatal(err)
	}
	listener, server := bufconn.Listen(1<<20), grpc.NewServer()
	s.Register(server)
	go func() { _ = server.Serve(listener) }() // the connection ends with the test
	t.Cleanup(server.Stop)
	return s, said, func() *proxy {
		connection, err := grpc.NewClient("passthrough:bridge", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { connection.Close() })
		stream, err := extension.NewExtensionConfigDiscoveryServiceClient(connection).StreamExtensionConfigs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := &proxy{t: t, stream: stream, heard: make(chan *discovery.DiscoveryResponse, 16), ended: make(chan error, 1)}
		go func() {
			for {
				response, err := stream.Recv()
				if err != nil {
					p.ended <- err
					return
				}
				p.heard <- response
			}
		}()
		return p
	}
}

// proxy.acknowledge sends a request that acknowledges a version, or rejects it for the reason
// in refusal.
func (p *proxy) acknowledge(version, nonce, refusal string) {
	p.t.Helper()
	request := &discovery.DiscoveryRequest{VersionInfo: version, ResponseNonce: nonce, TypeUrl: typeURL,
		ResourceNames: []string{"penstock"}, Node: &core.Node{Id: "envoy-7"}}
	if refusal != "" {
		request.ErrorDetail = &status.Status{Message: refusal}
	}
	if err := p.stream.Send(request); err != nil {
		p.t.Fatal(err)
	}
}

// proxy.wantSettings waits for a version, and returns the configuration of the filter in it.
func (p *proxy) wantSettings(version string) (settings, nonce, whole string) {
	p.t.Helper()
	var response *discovery.DiscoveryResponse
	select {
	case response = <-p.heard:
	case <-time.After(20 * time.Second):
		p.t.Fatalf("version %s never came", version)
	}
	if !strings.HasPrefix(response.GetVersionInfo(), version+"-") || response.GetTypeUrl() != typeURL || len(response.GetResources()) != 1 {
		p.t.Fatalf("got %v, want version %s", response, version)
	}
	var named core.TypedExtensionConfig
	var filter httpwasm.Wasm
	var text wrapperspb.StringValue
	for _, err := range []error{response.GetResources()[0].UnmarshalTo(&named), named.GetTypedConfig().UnmarshalTo(&filter),
		filter.GetConfig().GetConfiguration().UnmarshalTo(&text)} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
	if named.GetName() != "penstock" || filter.GetConfig().GetVmConfig().GetCode().GetLocal().GetFilename() != "/etc/penstock.wasm" {
		p.t.Errorf("%v", &filter)
	}
	return text.GetValue(), response.GetNonce(), response.GetVersionInfo()
}

// TestEveryEnvoyHasThePolicyInForce checks the policy at the start and after a change. An Envoy
// that rejects a version gets no other version until the next change.
func TestEveryEnvoyHasThePolicyInForce(t *testing.T) {
	s, said, connect := startServer(t, Options{Wasm: "/etc/penstock.wasm", Filter: "cluster: bridge\n# why\n\ndeadline: 20ms"})
	early := connect()
	early.acknowledge("", "", "")
	s.Set("v1", []byte("first"))
	settings, nonce, whole := early.wantSettings("v1")
	if want := "cluster: bridge\n# why\n\ndeadline: 20ms\npolicy: " + base64.StdEncoding.EncodeToString([]byte("first")) + "\n"; settings != want {
		t.Errorf("got %q, want %q", settings, want)
	}
	early.acknowledge(whole, nonce, "")
	late := connect()
	late.acknowledge("", "", "")
	_, lateNonce, _ := late.wantSettings("v1")
	late.acknowledge("", lateNonce, "Unable to create Wasm plugin")
	again := connect() // this is a reconnected Envoy that has the current version
	again.acknowledge(whole, "", "")
	eventually.Until(t, 20*time.Second, "somebody is told of the refusal", func() bool {
		return strings.Contains(said.String(), "Unable to create Wasm plugin")
	})
	if !strings.Contains(said.String(), "envoy-7") {
		t.Error("nobody is told which Envoy refuses")
	}
	s.Set("v2", []byte("second"))
	for _, p := range []*proxy{early, late, again} {
		if _, nonce, _ := p.wantSettings("v2"); nonce == "" {
			t.Error("no nonce")
		}
	}
	early.acknowledge("", "1", "what it says of a version before") // this request is ignored, because its nonce is outdated
	s.Set("v3", []byte("third"))
	if settings, nonce, _ := early.wantSettings("v3"); nonce != "3" || !strings.Contains(settings, base64.StdEncoding.EncodeToString([]byte("third"))) {
		t.Errorf("%q is its answer number %s, want 3", settings, nonce)
	}
}

// TestOptionsAreChecked tests that invalid options are rejected, with the reason.
func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{"missing": {}, "name: value": {Wasm: "x", Filter: "deadline"},
		"which the bridge sets": {Wasm: "x", Filter: "deadline: 5ms\npolicy: abc"}} {
		if _, err := New(o, slog.Default()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// TestTooManyEnvoys: a stream beyond the bound is rejected until another ends.
func TestTooManyEnvoys(t *testing.T) {
	s, _, connect := startServer(t, Options{Wasm: "/etc/penstock.wasm"})
	s.envoys.Store(envoysMax)
	if err := <-connect().ended; grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	s.envoys.Store(envoysMax - 1)
	s.Set("v1", nil)
	p := connect()
	p.acknowledge("", "", "")
	p.wantSettings("v1")
}

// TestARejectionIsLoggedOnce: a rejection is logged once for each version, so that an Envoy that
// repeats itself cannot fill the log.
func TestARejectionIsLoggedOnce(t *testing.T) {
	s, said, _ := startServer(t, Options{Wasm: "/etc/penstock.wasm"})
	e := &envoy{server: s, sent: 1}
	for range 3 {
		e.receive(&discovery.DiscoveryRequest{ResponseNonce: "1", ErrorDetail: &status.Status{Message: "first"}})
	}
	e.sent = 2
	e.receive(&discovery.DiscoveryRequest{ResponseNonce: "2", ErrorDetail: &status.Status{Message: "second"}})
	if text := said.String(); strings.Count(text, "first") != 1 || strings.Count(text, "second") != 1 {
		t.Error(text)
	}
}
