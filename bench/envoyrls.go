// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// service runs the bridge over a Redis, with one rule, for what asks by Envoy's rate limit protocol.
func (b *bench) service(redisAddress string) (p *process, address string, err error) {
	port, err := laterPort()
	if err != nil {
		return nil, "", err
	}
	address = fmt.Sprintf("127.0.0.1:%d", port)
	if p, _, err = b.bridge(oneEnvoyRule, redisAddress, "--rls-listen", address); err != nil {
		return nil, "", err
	}
	return p, address, p.until(10*time.Second, "listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// rateLimitServices compares Penstock's rate limit service with envoyproxy/ratelimit: each over a Redis of its own, one rule,
// one descriptor of one client.
func rateLimitServices(o options) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	message, err := proto.Marshal(&pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{
		{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "remote_address", Value: "192.0.2.7"}}}}})
	if err != nil {
		return err
	}
	systems := make([]*system, 2)
	for i, name := range []string{"envoyproxy/ratelimit", "penstock"} {
		store, redisAddress, err := b.redis()
		if err != nil {
			return err
		}
		var p *process
		var address string
		if i == 0 {
			p, address, err = b.rival(redisAddress)
		} else {
			p, address, err = b.service(redisAddress)
		}
		if err != nil {
			return err
		}
		systems[i] = &system{name: name, url: address, processes: []*process{p, store}}
	}
	for _, under := range []int{callers, 1} {
		ask := func(s *system, span time.Duration) (figures, error) {
			return s.measured(func() (int, figures, error) {
				ctx, end := context.WithTimeout(context.Background(), span+10*time.Second)
				defer end()
				return shoot(ctx, s.url, pb.RateLimitService_ShouldRateLimit_FullMethodName, message, span, under)
			})
		}
		for round := range o.rounds + 1 {
			for _, s := range systems {
				f, err := ask(s, o.round)
				if err != nil {
					return err
				}
				if s.seen = append(s.seen, f); round == 0 {
					s.seen = nil // connections were made, memory was taken
				}
			}
		}
		fmt.Printf("\n## Rate limit services over Redis, 1 rule, %d requests under way (load %s)\n\n", under, loadAverage())
		tell(systems, 0)
		service := func(f *figures) float64 { return f.cpu[0] }
		fmt.Printf("\npenstock: %.2f × the service CPU of envoyproxy/ratelimit\n", of(systems[1].seen, service)/of(systems[0].seen, service))
	}
	return nil
}
