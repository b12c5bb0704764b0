// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// question is a request to a gRPC service. The field named admitted is a function that reports
// whether the service's answer admits the request.
type question struct {
	method   string
	message  []byte
	admitted func(answer []byte) bool
}

// envoyQuestion is the request of Envoy's rate limit filter for one client.
func envoyQuestion() question {
	message, err := proto.Marshal(&pb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimit.RateLimitDescriptor{
		{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "remote_address", Value: "192.0.2.7"}}}}})
	if err != nil {
		panic(err) // the message above is valid, or the benchmark has a bug
	}
	return question{pb.RateLimitService_ShouldRateLimit_FullMethodName, message, func(answer []byte) bool { return bytes.HasPrefix(answer, []byte{8, 1}) }}
}

// gubernatorQuestion is a request to gubernator for one client with a limit per hour.
func gubernatorQuestion(limit int) question {
	var one []byte
	for number, text := range map[protowire.Number]string{1: "bench", 2: "192.0.2.7"} {
		one = protowire.AppendString(protowire.AppendTag(one, number, protowire.BytesType), text)
	}
	// hits, limit, milliseconds
	for number, value := range map[protowire.Number]uint64{3: 1, 4: uint64(limit), 5: 3_600_000} {
		one = protowire.AppendVarint(protowire.AppendTag(one, number, protowire.VarintType), value)
	}
	message := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), one)
	return question{"/pb.gubernator.V1/GetRateLimits", message, func(answer []byte) bool {
		// responses = 1 {status = 1 (0, which is not sent: under the limit), limit = 2, ..., error
		// = 5}
		_, _, n := protowire.ConsumeTag(answer)
		first, _ := protowire.ConsumeBytes(answer[max(0, n):])
		return len(first) > 0 && first[0] == 2<<3
	}}
}

// plainBytes passes messages through as they are.
type plainBytes struct{}

func (plainBytes) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (plainBytes) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (plainBytes) Name() string                       { return "proto" }

// bench.calling returns a function that sends the question to a service by gRPC and reports whether
// the answer admits the request.
func (b *bench) calling(address string, q question) (ask, error) {
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(plainBytes{})))
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() { c.Close() })
	return func() (bool, error) {
		ctx, end := context.WithTimeout(context.Background(), 10*time.Second)
		defer end()
		var answer []byte
		if err := c.Invoke(ctx, q.method, q.message, &answer); err != nil {
			return false, err
		}
		return q.admitted(answer), nil
	}, nil
}

// asService completes a system of a service's nodes, so that the measurements send the request q to
// them.
func (b *bench) asService(s *system, q question) (*system, error) {
	for _, address := range s.addresses {
		a, err := b.calling(address, q)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, a)
	}
	s.url = s.addresses[0]
	s.load = func(span time.Duration, under int) (int, figures, error) {
		ctx, end := context.WithTimeout(context.Background(), span+10*time.Second)
		defer end()
		return shoot(ctx, s.url, q, span, under)
	}
	return s, nil
}

// nodesOver returns a function that starts nodes of a service. If withRedis is set, the nodes share
// one Redis.
func nodesOver(withRedis bool, sends []string, start func(b *bench, redisAddress string, limit int) (*process, string, error)) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		s := &system{sends: sends}
		var store *process
		var err error
		if withRedis {
			if store, s.redis, err = b.redis(); err != nil {
				return nil, err
			}
		}
		for range nodes {
			p, address, err := start(b, s.redis, limit)
			if err != nil {
				return nil, err
			}
			s.processes, s.addresses = append(s.processes, p), append(s.addresses, address)
		}
		if withRedis {
			s.processes = append(s.processes, store)
		}
		return b.asService(s, envoyQuestion())
	}
}

// rateLimits returns a function that starts nodes of envoyproxy/ratelimit.
func rateLimits(keeps statistics) func(*bench, int, int) (*system, error) {
	return nodesOver(true, []string{"incrby", "expire"}, func(b *bench, address string, limit int) (*process, string, error) {
		return b.rateLimit(address, limit, keeps)
	})
}

// bridges returns a function that starts nodes of Penstock's rate limit service.
func bridges(withRedis bool, words string) func(*bench, int, int) (*system, error) {
	return nodesOver(withRedis, []string{"evalsha"}, func(b *bench, address string, limit int) (*process, string, error) {
		return b.service(oneEnvoyRule(limit, words), address)
	})
}

// limitadors returns a function that starts nodes of Limitador.
func limitadors(storage string) func(*bench, int, int) (*system, error) {
	return nodesOver(storage != "memory", []string{"mget", "evalsha"}, func(b *bench, address string, limit int) (*process, string, error) {
		return b.limitador(storage, address, limit)
	})
}

// gubernators starts nodes of gubernator.
func gubernators(b *bench, limit, nodes int) (*system, error) {
	processes, addresses, err := b.gubernator(nodes)
	if err != nil {
		return nil, err
	}
	s, err := b.asService(&system{processes: processes, addresses: addresses}, gubernatorQuestion(limit))
	if err != nil {
		return nil, err
	}
	// The nodes need a moment until they find the node that owns a limit.
	return s, processes[0].until(20*time.Second, "answers", func() bool {
		return s.knowsItself(b)
	})
}

// probes numbers the clients of requests that only check whether a service answers.
var probes atomic.Int64

// knowsItself reports whether each node answers a request of a client that is not measured.
func (s *system) knowsItself(b *bench) bool {
	for _, address := range s.addresses {
		q := gubernatorQuestion(1)
		q.message = bytes.ReplaceAll(q.message, []byte("192.0.2.7"), fmt.Appendf(nil, "probe%04d", probes.Add(1)%10_000))
		a, err := b.calling(address, q)
		if err != nil {
			return false
		}
		if ok, err := a(); err != nil || !ok {
			return false
		}
	}
	return true
}

// servicesCompared compares rate limit services on their own, with requests for one limit of one
// client.
func servicesCompared(o options, s *section) error {
	limitador := func(storage string) *contender {
		return &contender{name: "Limitador, " + storage, start: limitadors(storage)}
	}
	theirs := &contender{name: "envoyproxy/ratelimit without statistics, Redis", start: rateLimits(noStatistics)}
	ours := &contender{name: "Penstock, Redis", start: bridges(true, "")}
	leased := &contender{name: "Penstock, Redis, `lease: auto`", start: bridges(true, "lease: auto\n")}
	all := []*contender{theirs, ours, leased, {name: "Penstock, memory", start: bridges(false, "")}, limitador("memory"), limitador("redis"), limitador("redis_cached"),
		{name: "gubernator (its own protocol)", start: gubernators, earlier: []string{"28,000", "", "2,002", "42", "", "", "", ""}}}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	rate := of(ours.seen.seen, perSecond) / of(theirs.seen.seen, perSecond)
	cpu := of(ours.seen.seen, firstCPU) / of(theirs.seen.seen, firstCPU)
	s.targets(fmt.Sprintf("Penstock's service answers %.2f × the requests of envoyproxy/ratelimit (%s) at %.2f × its service CPU (%s).",
		rate, against(rate >= 1.15, "1.15 ×"), cpu, against(cpu <= 0.6, "0.6 ×")))
	return nil
}

var errNoAnswer = errors.New("nothing was answered")
