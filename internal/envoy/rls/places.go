// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/sources"
)

const (
	// waitDefault bounds the wait of a request for its answer if Envoy sends no deadline.
	waitDefault = 200 * time.Millisecond
	// loanTimeMin is the time until Envoy's deadline below which a request does not wait for a
	// loan. With less time, the store could not be called again after the wait.
	loanTimeMin = 200 * time.Millisecond
	// loanTimeMax bounds a request that may wait for a loan if Envoy sends no deadline: the wait
	// itself takes at most a second.
	loanTimeMax = time.Second + waitDefault
	// leftMin is the time until Envoy's deadline below which a request is not decided.
	leftMin = 2 * time.Millisecond
	// verifyMin and verifyMax bound the time for verifying the unknown tokens of one request. With
	// Envoy's default timeout of 20 ms, tokens get verifyMin. A request keeps its place while it
	// waits for a processor, so if each waited for verifyMax, 40,000 new tokens a second would take
	// all places.
	verifyMin = 8 * time.Millisecond
	verifyMax = 100 * time.Millisecond
)

// places counts the requests under way, in total and by client address. Requests of one address may
// use half of the places. So a client leaves half of them to other clients, whatever its
// descriptors contain. If Envoy sends no address, the same holds for requests with the same
// descriptors.
type places struct {
	seed    maphash.Seed
	all     atomic.Int64
	sources *sources.Counts
}

func newPlaces() places { return places{seed: maphash.MakeSeed(), sources: sources.New()} }

// places.take takes a place for a request. The result ok is false if no place is free for the
// request. Whether or not ok is true, the caller must call leave with the source.
func (p *places) take(request *pb.RateLimitRequest, most int) (from sources.Source, ok bool) {
	from = p.sourceOf(request)
	all, own := p.all.Add(1), from.Enter(most)
	return from, all <= int64(most) && own
}

func (p *places) leave(from sources.Source) {
	from.Leave()
	p.all.Add(-1)
}

// sourceOf returns the source of a request: the client's address (for IPv6, its first 64 bits), or
// all descriptors of the request if they contain no address.
func (p *places) sourceOf(request *pb.RateLimitRequest) sources.Source {
	var h maphash.Hash
	h.SetSeed(p.seed)
	for _, d := range request.GetDescriptors() {
		for _, e := range d.GetEntries() {
			if e.GetKey() == addressKey {
				if addr, err := netip.ParseAddr(e.GetValue()); err == nil {
					return p.sources.Of(network(addr))
				}
			}
			_, _ = h.WriteString(e.GetKey()) // never fails
			_ = h.WriteByte(0)
			_, _ = h.WriteString(e.GetValue())
			_ = h.WriteByte(0)
		}
	}
	return p.sources.Of(h.Sum64())
}

// network returns a number for the network whose addresses one client can have.
func network(addr netip.Addr) uint64 {
	b := addr.As16()
	if addr = addr.Unmap(); addr.Is4() {
		return uint64(binary.BigEndian.Uint32(b[12:]))
	}
	return binary.BigEndian.Uint64(b[:8])
}

// withHalfDeadline returns a context that ends at half of Envoy's remaining time, so that the
// service answers before Envoy gives up. The result named verify is how long the verification of
// unknown tokens may take: four fifths of that half, within verifyMin and verifyMax. The result ok
// is false if too little time is left.
func withHalfDeadline(ctx context.Context) (until context.Context, cancel context.CancelFunc, verify counter.Micros, ok bool) {
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

// loanTimes bounds the wait of a request for a loan. The wait ends when a quarter of Envoy's time
// is left, and the store must answer when an eighth is left. If Envoy has less than loanTimeMin,
// the request does not wait.
func loanTimes(ctx context.Context) enforce.Times {
	now := time.Now()
	deadline, given := ctx.Deadline()
	left := deadline.Sub(now)
	switch {
	case !given:
		return enforce.Times{Last: now.Add(loanTimeMax)}
	case left < loanTimeMin:
		return enforce.Times{Wait: now, Last: now.Add(left / 2)}
	}
	return enforce.Times{Wait: deadline.Add(-left / 4), Last: deadline.Add(-left / 8)}
}
