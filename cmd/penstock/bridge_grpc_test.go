// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	envoycore "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extension "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/penstock/penstock/internal/test/eventually"
)

// running.dialGRPC returns the address at which the bridge serves the named service, and a
// connection to that address.
func (r *running) dialGRPC(what string) (address string, conn *grpc.ClientConn) {
	r.t.Helper()
	listens := `over gRPC" for="` + what + `" address=(\S+)`
	r.eventually(listens)
	address = regexp.MustCompile(listens).FindStringSubmatch(r.said.String())[1]
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return address, conn
}

// descriptors returns a request of Envoy's rate limit protocol with one descriptor, which names the
// client.
func descriptors(client string) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "default", Descriptors: []*ratelimit.RateLimitDescriptor{{
		Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "remote_address", Value: client}}}}}
}

// TestTheTokenOverGRPC tests that a client without the token can check the health of the bridge,
// but cannot get Envoy's filter configuration, which contains the token.
func TestTheTokenOverGRPC(t *testing.T) {
	const token = "0123456789abcdef"
	filter := file(t, "filter.conf", "token: "+token+"\n")
	r := startBridge(t, "--token", token, "--rls-listen", "127.0.0.1:0", "--xds-listen", "127.0.0.1:0", "--xds-wasm", "/etc/penstock.wasm",
		"--xds-filter", filter)
	_, limits := r.dialGRPC("Envoy's rate limit protocol")
	_, extensions := r.dialGRPC("Envoy's extension discovery")
	for shown, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer ": codes.Unauthenticated, token: codes.Unauthenticated,
		"Bearer " + token[1:]: codes.Unauthenticated, "Bearer " + token + "x": codes.Unauthenticated, "Bearer " + token: codes.OK} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if shown != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", shown)
		}
		if _, err := pb.NewRateLimitServiceClient(limits).ShouldRateLimit(ctx, descriptors("192.0.2.7")); status.Code(err) != want {
			t.Errorf("with %q the rate limit service answers %v", shown, err)
		}
		stream, err := extension.NewExtensionConfigDiscoveryServiceClient(extensions).StreamExtensionConfigs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// Only the reply shows whether the bridge accepted the request, so the error of Send is
		// ignored.
		_ = stream.Send(&discovery.DiscoveryRequest{ResourceNames: []string{"penstock"}, Node: &envoycore.Node{Id: "envoy"}})
		response, err := stream.Recv()
		if status.Code(err) != want || (response != nil) != (want == codes.OK) {
			t.Errorf("with %q the discovery service answers %v, %v", shown, response, err)
		}
	}
	for _, shown := range [][]string{{"authorization", "Bearer " + token, "authorization", "x"}} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), shown...)
		if _, err := pb.NewRateLimitServiceClient(limits).ShouldRateLimit(ctx, descriptors("192.0.2.7")); status.Code(err) != codes.Unauthenticated {
			t.Errorf("with two of them: %v", err)
		}
	}
	if _, err := healthpb.NewHealthClient(limits).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("whether it is there is not told: %v", err)
	}
	watch, err := healthpb.NewHealthClient(limits).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if said, err := watch.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a health watch without the token gets %v, %v", said, err)
	}
}

// TestTheDurationOfRateLimitRequests tests that /metrics includes how long requests over gRPC
// waited for the store, in the same metric as requests from filters.
func TestTheDurationOfRateLimitRequests(t *testing.T) {
	r := startBridge(t, "--rls-listen", "127.0.0.1:0")
	_, limits := r.dialGRPC("Envoy's rate limit protocol")
	const asked = 3
	request := descriptors("192.0.2.7")
	request.Domain = "bridge"
	for range asked {
		if _, err := pb.NewRateLimitServiceClient(limits).ShouldRateLimit(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	_, said := r.do(http.DefaultClient, http.MethodGet, "/metrics", "")
	const want = "penstock_check_duration_seconds_count 3\n"
	if !strings.Contains(said, want) {
		t.Errorf("after %d requests /metrics has no line %q:\n%s", asked, want, said)
	}
}

// TestHalfSentRequestsOverGRPC tests that 2,000 half-sent requests delay no other request, and that
// the bridge ends them.
func TestHalfSentRequestsOverGRPC(t *testing.T) {
	const half = 2000
	t.Setenv("BUCKET_SIZE", "1000000")
	r := startBridge(t, "--calls-max", "8", "--rls-listen", "127.0.0.1:0")
	address, conn := r.dialGRPC("Envoy's rate limit protocol")
	client := pb.NewRateLimitServiceClient(conn)
	var ended, others atomic.Int64
	two := newHTTPClient(true)
	for range half {
		go func() {
			switch said, err := sendHalfCall(two, address, pb.RateLimitService_ShouldRateLimit_FullMethodName); {
			case err != nil:
				t.Error(err)
			case said == fmt.Sprint(int(codes.DeadlineExceeded)):
				ended.Add(1)
			default:
				t.Errorf("grpc-status %q", said)
				others.Add(1)
			}
		}()
	}
	good := 0
	eventually.Until(t, time.Minute, "half-sent requests are ended", func() bool {
		if _, err := client.ShouldRateLimit(t.Context(), descriptors("192.0.2.7")); err != nil {
			t.Fatalf("good request %d: %v", good, err)
		}
		good++
		return ended.Load()+others.Load() == half
	})
	if good < 20 {
		t.Errorf("%d requests were answered beside them", good)
	}
	// A call that watches the health may last for any time. But its request must arrive in time.
	said, err := sendHalfCall(two, address, healthpb.Health_Watch_FullMethodName)
	if err != nil || said != fmt.Sprint(int(codes.Canceled)) {
		t.Errorf("half a request to watch the health ends with status %q, %v", said, err)
	}
}

// TestGRPCWithoutTheToken tests that clients without the token can check the health, only a few at
// a time, and can call nothing else.
func TestGRPCWithoutTheToken(t *testing.T) {
	guard := &grpcGuard{token: "0123456789abcdef", patience: time.Minute}
	asks := func(method string, header metadata.MD) (context.CancelFunc, codes.Code) {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := guard.enter(ctx, &tap.Info{FullMethodName: method, Header: header})
		return cancel, status.Code(err)
	}
	if _, code := asks(healthpb.Health_Watch_FullMethodName, nil); code != codes.Unauthenticated {
		t.Errorf("a health watch without the token: %v", code)
	}
	var first context.CancelFunc
	for i := range tokenlessMax {
		cancel, code := asks(healthpb.Health_Check_FullMethodName, nil)
		if code != codes.OK {
			t.Fatalf("health check %d: %v", i+1, code)
		}
		if first == nil {
			first = cancel
		}
	}
	if _, code := asks(healthpb.Health_Check_FullMethodName, nil); code != codes.ResourceExhausted {
		t.Errorf("one health check more: %v", code)
	}
	if _, code := asks(healthpb.Health_Check_FullMethodName, metadata.Pairs("authorization", "Bearer "+guard.token)); code != codes.OK {
		t.Errorf("one who shows the token: %v", code)
	}
	first()
	eventually.Until(t, time.Minute, "a place is free again", func() bool {
		cancel, code := asks(healthpb.Health_Check_FullMethodName, nil)
		defer cancel()
		return code == codes.OK
	})
}

// sendHalfCall sends the header of a call and only a part of its message. It returns the gRPC
// status with which the server ends the call.
func sendHalfCall(client *http.Client, address, method string) (string, error) {
	body, rest := io.Pipe()
	defer rest.Close()
	go func() { _, _ = rest.Write([]byte{0, 0, 0}) }() // the write ends with the request
	request, err := http.NewRequest(http.MethodPost, "http://"+address+method, body)
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "NO_ERROR") {
		return "", err
	}
	return response.Trailer.Get("Grpc-Status") + response.Header.Get("Grpc-Status"), nil
}

// TestAPanicOverGRPC tests that a panic ends only the call in which it occurs, although gRPC itself
// does not recover from panics.
func TestAPanicOverGRPC(t *testing.T) {
	said := new(eventually.Journal)
	guard := &grpcGuard{logger: said.Logger()}
	_, err := guard.callUnary(t.Context(), nil, nil, func(context.Context, any) (any, error) { panic("provoked once") })
	if status.Code(err) != codes.Internal {
		t.Errorf("a request: %v", err)
	}
	err = guard.stream(nil, nil, nil, func(any, grpc.ServerStream) error { panic("provoked twice") })
	if status.Code(err) != codes.Internal {
		t.Errorf("a stream: %v", err)
	}
	if text := said.String(); !strings.Contains(text, "provoked once") || !strings.Contains(text, "provoked twice") {
		t.Error(text)
	}
}

// TestStoppingOverGRPC tests that a health watch is notified as soon as the bridge begins to stop,
// and that the bridge answers requests until it has stopped.
func TestStoppingOverGRPC(t *testing.T) {
	r := startBridge(t, "--rls-listen", "127.0.0.1:0", "--drain-delay", "300ms")
	_, conn := r.dialGRPC("Envoy's rate limit protocol")
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if said, err := watch.Recv(); err != nil || said.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(said, err)
	}
	r.stop()
	if said, err := watch.Recv(); err != nil || said.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Error(said, err)
	}
	if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), descriptors("192.0.2.7")); err != nil {
		t.Errorf("nothing is answered any more: %v", err)
	}
}
