// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
)

// BenchmarkChange measures a change from the call to the message that processes receive.
func BenchmarkChange(b *testing.B) {
	p := newPlane(b)
	p.start()
	eventually.Until(b, patience, "Redis is filled", p.isComplete)
	told, ready := make(chan struct{}, 1), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go p.source.Follow(ctx, func(policy.ClientName) { told <- struct{}{} }, func() {
		select {
		case ready <- struct{}{}:
		default:
		}
	})
	<-ready
	for i := 0; b.Loop(); i++ {
		action := directory.ActionBlock
		if i%2 == 1 {
			action = directory.ActionUnblock
		}
		p.edit(directory.Edit{Client: "user:bob", Action: action})
		<-told
	}
}

// BenchmarkFill measures how fast an emptied Redis is filled, including the publisher's pauses.
func BenchmarkFill(b *testing.B) {
	const clients = 200_000
	p := newPlane(b)
	p.writeClients(clients)
	p.start()
	eventually.Until(b, patience, "Redis is filled", p.isComplete)
	began, n := time.Now(), 0
	for b.Loop() {
		if err := p.redis.Client().FlushAll(context.Background()).Err(); err != nil {
			b.Fatal(err)
		}
		eventually.Until(b, patience, "Redis is filled again", p.isComplete)
		n++
	}
	b.ReportMetric(float64(n*clients)/time.Since(began).Seconds(), "records/s")
}
