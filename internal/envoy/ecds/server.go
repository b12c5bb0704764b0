// SPDX-License-Identifier: Apache-2.0

package ecds

import (
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	extension "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// typeURL is the type of the resource.
const typeURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

// envoysMax is the greatest number of connected Envoys, at 20 KB each. Any further Envoy is
// answered RESOURCE_EXHAUSTED and retries. Until a retry succeeds, the filter of such an Envoy
// fetches the policy from the bridge if its configuration has none.
const envoysMax = 4096

// rejectionBytesMax bounds the logged part of an Envoy's reason for rejecting a version.
const rejectionBytesMax = 1024

// Server sends the resource to Envoys. A Server is safe for concurrent use.
type Server struct {
	extension.UnimplementedExtensionConfigDiscoveryServiceServer
	options Options
	logger  *slog.Logger
	envoys  atomic.Int64

	mu      sync.Mutex
	current edition
	changed chan struct{} // closed when edition is replaced
}

// edition is one version of the resource.
type edition struct {
	version  string
	resource *anypb.Any
}

// New returns a server that sends nothing before Set.
func New(o Options, logger *slog.Logger) (*Server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Server{options: o, logger: logger, changed: make(chan struct{})}, nil
}

// Set makes a compact policy the current one, and sends it to every Envoy.
func (s *Server) Set(version string, policy []byte) {
	resource, err := s.options.resource(policy)
	if err != nil { // this is unreachable, because the resource contains only texts and bytes
		s.logger.Error("the policy cannot be sent to Envoy", "version", version, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = edition{s.options.version(version), resource}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Register adds the service to a gRPC server.
func (s *Server) Register(server *grpc.Server) {
	extension.RegisterExtensionConfigDiscoveryServiceServer(server, s)
}

// Server.now returns the current edition, and a channel that is closed when the edition
// is replaced.
func (s *Server) now() (edition, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.changed
}

// envoy is the stream of one Envoy.
type envoy struct {
	server *Server
	stream extension.ExtensionConfigDiscoveryService_StreamExtensionConfigsServer
	wants  bool   // whether it has subscribed to the resource
	has    string // the version that was last sent to it, or that it reports
	sent   int
	told   int // the last response whose rejection was logged
}

// StreamExtensionConfigs implements the service: it serves one Envoy until its stream ends.
func (s *Server) StreamExtensionConfigs(stream extension.ExtensionConfigDiscoveryService_StreamExtensionConfigsServer) error {
	defer s.envoys.Add(-1)
	if s.envoys.Add(1) > envoysMax {
		return status.Error(codes.ResourceExhausted, "too many Envoys are connected")
	}
	requests, gone := make(chan *discovery.DiscoveryRequest), make(chan error, 1)
	go func() {
		for {
			request, err := stream.Recv()
			if err != nil {
				gone <- err
				return
			}
			select {
			case requests <- request:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	e := &envoy{server: s, stream: stream}
	for {
		now, changed := s.now()
		if err := e.send(now); err != nil {
			return err
		}
		select {
		case request := <-requests:
			e.receive(request)
		case <-changed:
		case <-gone:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// envoy.receive processes a request. It records whether the Envoy wants the resource, and whether
// it accepted the last version.
func (e *envoy) receive(request *discovery.DiscoveryRequest) {
	nonce := request.GetResponseNonce()
	if nonce != "" && nonce != strconv.Itoa(e.sent) {
		return // the request refers to an older version; the Envoy will send another request
	}
	names := request.GetResourceNames()
	e.wants = len(names) == 0 || slices.Contains(names, resourceName)
	if nonce == "" {
		e.has = request.GetVersionInfo()
	}
	if refusal := request.GetErrorDetail(); refusal != nil && e.sent > e.told {
		e.told = e.sent
		e.server.logger.Error("an Envoy rejected the policy and keeps the previous one", "version", e.has,
			"node", clip(request.GetNode().GetId()), "reason", clip(refusal.GetMessage()))
	}
}

func clip(text string) string { return text[:min(len(text), rejectionBytesMax)] }

// envoy.send sends an edition, unless the Envoy has it or did not ask for one.
func (e *envoy) send(now edition) error {
	if !e.wants || now.resource == nil || now.version == e.has {
		return nil
	}
	e.sent++
	e.has = now.version
	return e.stream.Send(&discovery.DiscoveryResponse{VersionInfo: now.version, TypeUrl: typeURL, Nonce: strconv.Itoa(e.sent),
		Resources: []*anypb.Any{now.resource}})
}
