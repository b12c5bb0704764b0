// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"hash/maphash"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core/counter"
)

const (
	// waitDefault bounds the wait of a request for its answer if Envoy sends no deadline.
	waitDefault = 200 * time.Millisecond
	// leftMin is the time until Envoy's deadline below which a request is not decided.
	leftMin = 2 * time.Millisecond
	// verifyMin and verifyMax bound the time for unknown tokens of one request. By default, Envoy
	// waits 20 ms for an answer, which leaves verifyMin. A request keeps its place while it waits
	// for a processor. If each waited for verifyMax, 40,000 new tokens a second would take all
	// places.
	verifyMin = 8 * time.Millisecond
	verifyMax = 100 * time.Millisecond
	// sourceBuckets is the number of groups into which requests are hashed by their descriptors.
	sourceBuckets = 1024
)

// places counts the requests under way, in total and by their descriptors. Requests with the same
// descriptors may use half of the places. So a client whose requests all have the same descriptors
// leaves half of the places to others.
type places struct {
	seed    maphash.Seed
	all     atomic.Int64
	sources [sourceBuckets]atomic.Int32
}

// take takes a place for a request. ok is false if there is none. In both cases the caller must
// call leave with the bucket.
func (p *places) take(request *pb.RateLimitRequest, most int) (bucket *atomic.Int32, ok bool) {
	var h maphash.Hash
	h.SetSeed(p.seed)
	for _, d := range request.GetDescriptors() {
		for _, e := range d.GetEntries() {
			_, _ = h.WriteString(e.GetKey()) // never fails
			_ = h.WriteByte(0)
			_, _ = h.WriteString(e.GetValue())
			_ = h.WriteByte(0)
		}
	}
	bucket = &p.sources[h.Sum64()%sourceBuckets]
	all, alike := p.all.Add(1), bucket.Add(1)
	return bucket, all <= int64(most) && int(alike) <= max(1, most/2)
}

func (p *places) leave(bucket *atomic.Int32) {
	bucket.Add(-1)
	p.all.Add(-1)
}

// hurried returns a context that ends at half of Envoy's remaining time, so that the service
// answers before Envoy gives up, and how long the verification of unknown tokens may take: four
// fifths of that half, within verifyMin and verifyMax. ok is false if too little time is left.
func hurried(ctx context.Context) (until context.Context, cancel context.CancelFunc, verify counter.Micros, ok bool) {
	wait := waitDefault
	if deadline, given := ctx.Deadline(); given {
		left := time.Until(deadline)
		if left < leftMin {
			return ctx, func() {}, 0, false
		}
		wait = left / 2
	}
	until, cancel = context.WithTimeout(ctx, wait)
	return until, cancel, counter.Micros(max(verifyMin, min(wait*4/5, verifyMax)) / time.Microsecond), true
}
