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

// envoysMax is how many Envoys are told of the policy. They cost 20 KB each; one more is answered RESOURCE_EXHAUSTED, tries
// again by itself, and asks for the policy by itself where it has a configuration without one meanwhile.
const envoysMax = 4096

// refusalBytesMax is how much of what an Envoy says about a version that it refuses is logged.
const refusalBytesMax = 1024

// Server gives Envoys the resource. Safe for concurrent use.
type Server struct {
	extension.UnimplementedExtensionConfigDiscoveryServiceServer
	options Options
	logger  *slog.Logger
	envoys  atomic.Int64

	mu      sync.Mutex
	current edition
	changed chan struct{} // closed when there is another edition
}

// edition is one version of the resource.
type edition struct {
	version  string
	resource *anypb.Any
}

// New returns a server that gives nothing yet.
func New(o Options, logger *slog.Logger) (*Server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Server{options: o, logger: logger, changed: make(chan struct{})}, nil
}

// Set gives every Envoy a compact policy from now on.
func (s *Server) Set(version string, policy []byte) {
	resource, err := s.options.resource(policy)
	if err != nil { // cannot be: it is texts and bytes
		s.logger.Error("Envoy is not told of the policy", "version", version, "error", err)
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

// now returns the edition to give, and what is closed when there is another.
func (s *Server) now() (edition, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.changed
}

// envoy is one stream.
type envoy struct {
	server *Server
	stream extension.ExtensionConfigDiscoveryService_StreamExtensionConfigsServer
	wants  bool   // the resource
	has    string // the version that it was sent last, or says it has
	sent   int
	told   int // which of what was sent the log says to be refused
}

// StreamExtensionConfigs implements the service: it answers one Envoy until that is gone.
func (s *Server) StreamExtensionConfigs(stream extension.ExtensionConfigDiscoveryService_StreamExtensionConfigsServer) error {
	defer s.envoys.Add(-1)
	if s.envoys.Add(1) > envoysMax {
		return status.Error(codes.ResourceExhausted, "too many Envoys are told of the policy")
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
		if err := e.bring(now); err != nil {
			return err
		}
		select {
		case request := <-requests:
			e.heard(request)
		case <-changed:
		case <-gone:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// heard takes in what the Envoy says: what it wants, and what it made of what it was sent.
func (e *envoy) heard(request *discovery.DiscoveryRequest) {
	nonce := request.GetResponseNonce()
	if nonce != "" && nonce != strconv.Itoa(e.sent) {
		return // it is about an older version, and will say it again
	}
	names := request.GetResourceNames()
	e.wants = len(names) == 0 || slices.Contains(names, resourceName)
	if nonce == "" {
		e.has = request.GetVersionInfo()
	}
	if refusal := request.GetErrorDetail(); refusal != nil && e.sent > e.told {
		e.told = e.sent
		e.server.logger.Error("an Envoy refuses the policy, and goes on with the one before", "version", e.has,
			"node", clipped(request.GetNode().GetId()), "reason", clipped(refusal.GetMessage()))
	}
}

func clipped(text string) string { return text[:min(len(text), refusalBytesMax)] }

// bring sends an edition, unless the Envoy has it or wants none.
func (e *envoy) bring(now edition) error {
	if !e.wants || now.resource == nil || now.version == e.has {
		return nil
	}
	e.sent++
	e.has = now.version
	return e.stream.Send(&discovery.DiscoveryResponse{VersionInfo: now.version, TypeUrl: typeURL, Nonce: strconv.Itoa(e.sent),
		Resources: []*anypb.Any{now.resource}})
}
