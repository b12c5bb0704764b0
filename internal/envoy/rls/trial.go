// SPDX-License-Identifier: Apache-2.0

package rls

import (
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/shadow"
)

// triedBytesMax bounds the size of a request that is kept for a trial. A larger request counts as
// untried.
const triedBytesMax = 16 << 10

// tryOut makes the candidate decide the request, in the background. Descriptors with a limit of
// their own are left out, because a candidate does not change those limits. Nothing is tried out
// for a domain without a policy.
func (s *Service) tryOut(request *pb.RateLimitRequest, c *call, denied bool) {
	if len(c.descriptors) == 0 {
		return
	}
	t := s.options.Trial(denied)
	if t == nil {
		return
	}
	if proto.Size(request) > triedBytesMax {
		t.Drop()
		return
	}
	t.Source = &triedRequest{service: s, request: request, past: c.past, at: c.descriptors[0].Attributes.Now()}
	t.Start()
}

// triedRequest is a request that a candidate decides. Nothing else uses its memory after the
// answer.
type triedRequest struct {
	service *Service
	request *pb.RateLimitRequest
	past    core.Past // of descriptors with their own hits
	at      counter.Micros
}

// Plan implements [shadow.Source].
func (s *triedRequest) Plan(t *shadow.Trial) bool {
	sources := s.request.GetDescriptors()
	descriptions, descriptors := make([]description, len(sources)), make([]core.Descriptor, 0, len(sources))
	for i, source := range sources {
		if source.GetLimit() != nil {
			continue
		}
		d := &descriptions[i]
		d.read(s.request.GetDomain(), source, s.at)
		descriptors = append(descriptors, core.Descriptor{Attributes: d, Hits: max(1, int64(s.request.GetHitsAddend()))})
		readHits(&descriptors[len(descriptors)-1], source, s.past)
	}
	t.AddDescriptors(descriptors, s.service.options.Directory(t.Version.Ruleset))
	return true
}

// Release implements [shadow.Source].
func (s *triedRequest) Release() {}

var _ shadow.Source = (*triedRequest)(nil)
