// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// bridgeCluster is a cluster that calls the bridge over its socket by HTTP/1.1, as in the example.
const bridgeCluster = `{name: NAME, type: STATIC, connect_timeout: 1s,
  circuit_breakers: {thresholds: [{max_connections: 65536, max_requests: 65536, max_pending_requests: 65536}]},
  load_assignment: {cluster_name: NAME, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: SOCKET}}}}]}]}}`

// guideHTTP2 is the setting of the guide for clusters that reach the bridge by HTTP/2.
const guideHTTP2 = "http2_protocol_options: { max_outbound_frames: 1000000, max_outbound_control_frames: 1000000 }"

// http2Cluster is a cluster that calls the bridge by HTTP/2.
var http2Cluster = bridgeCluster[:len(bridgeCluster)-1] + `,
  typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    {"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {` + guideHTTP2 + `}}}}`

// TestResetsEndNoConnection: a client resets thousands of streams as soon as it has opened them.
// Envoy then resets as many streams of its own, at the rate limit service and at the bridge. Its
// connections to the service and the bridge also carry the calls of other clients. With the
// clusters of the guide, Envoy does not close such a connection.
func TestResetsEndNoConnection(t *testing.T) {
	t.Parallel()
	limits := strings.Replace(guideBlock(t, "- match: { path: /limits }"), `"cluster":"penstock"`, `"cluster":"BRIDGE"`, 1) + ","
	filter := &site{set: longDeadline, cluster: http2Cluster, routes: limits}
	// A busy machine may take longer than the guide's timeout.
	patient := strings.Replace(descriptorFilter, "timeout: "+rlsTimeout, "timeout: 20s", 1)
	service := &site{filter: patient, routes: descriptorRoutes, rpcCluster: guideRateLimitCluster(t)}
	useEnvoy(t, nil, filter, service)
	policy := "name: attack\nrules: [{name: each, match: {path: /each}, limit: 5/31d fixed_window}, {name: all, limit: 1000000/31d fixed_window}]\n"
	t.Run("filter", func(t *testing.T) {
		filter.startBridge(t, policy)
		filter.awaitDecided(t)
		filter.resetAll(t, "/limits", filter.bridgeName())
	})
	t.Run("service", func(t *testing.T) {
		b := newBridge(t, policy, "--redis", redistest.Start(t).URL(), "--redis-timeout", "5s", "--rls-listen", "unix:"+service.grpc)
		b.listen = service.bridge
		b.run(t)
		eventually.Until(t, patience, "Envoy has reached the service", func() bool { return service.get(t, "/").header.Get("RateLimit") != "" })
		service.resetAll(t, "/each", service.bridgeName()+"-grpc")
	})
}

// TestGuideBoundsFrames: both clusters of the guide that use HTTP/2 have the setting of
// http2Cluster.
func TestGuideBoundsFrames(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/guides/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), guideHTTP2); n != 2 {
		t.Errorf("the guide has %q %d times, want 2", guideHTTP2, n)
	}
}

// resetAll resets streams for a path over many connections at once, several times, while another
// client sends requests. Every request of the other client is admitted and counted, and Envoy does
// not close its connections to the cluster.
func (s *site) resetAll(t *testing.T, path, cluster string) {
	t.Helper()
	const rounds, connections = 5, 20
	check := s.checkConnections(t, cluster)
	withOtherClient(t, s.address, true, func() map[int]int {
		for range rounds {
			s.resetStreams(t, path, connections)
		}
		return nil
	})
	check()
	t.Logf("%d streams were reset at the cluster", s.envoy.stat("cluster."+cluster+".http2.tx_reset"))
}

// resetsEach is how many streams of a connection are reset. From 500 on, Envoy closes the
// connection of a client that resets most of its streams.
const resetsEach = 490

// resetStreams opens streams over several connections, and resets each of them at once. All frames
// of a connection are written together.
func (s *site) resetStreams(t *testing.T, path string, connections int) {
	t.Helper()
	var text, block bytes.Buffer
	text.WriteString(http2.ClientPreface)
	framer, coder := http2.NewFramer(&text, nil), hpack.NewEncoder(&block)
	err := framer.WriteSettings()
	for i := range resetsEach {
		block.Reset()
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: http.MethodGet}, {Name: ":scheme", Value: "http"},
			{Name: ":authority", Value: "h"}, {Name: ":path", Value: path}} {
			_ = coder.WriteField(f) // a buffer accepts every write
		}
		stream := uint32(2*i + 1)
		if err == nil {
			err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		}
		if err == nil {
			err = framer.WriteRSTStream(stream, http2.ErrCodeCancel)
		}
	}
	if err == nil {
		err = framer.WritePing(false, [8]byte{})
	}
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	start := make(chan struct{})
	for range connections {
		c, err := connectFrom("127.0.0.1", s.address)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer c.Close()
			<-start
			if _, err := c.Write(text.Bytes()); err == nil {
				awaitPong(c)
			}
		})
	}
	close(start)
	group.Wait()
}

// awaitPong reads until Envoy has answered a PING or closed the connection. An answer shows that
// Envoy has read the frames before the PING.
func awaitPong(c net.Conn) {
	framer := http2.NewFramer(io.Discard, c)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
			return
		}
	}
}
