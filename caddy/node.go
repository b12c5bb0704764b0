// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"time"

	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
)

// topDenied counts the clients that were denied most often, across all configurations of this
// process.
var topDenied = topk.New(topk.Options{})

// thisNode represents this process among the nodes that count in one Redis.
var thisNode = fleet.New(fleet.Sources{Front: "caddy", Policies: policiesOfNode, Totals: totalsOfNode, Denied: topDenied,
	Problems: problemsOfNode, Events: eventLog.Tail}, time.Now())

// policiesOfNode returns the policies of the running configuration.
func policiesOfNode() []fleet.Policy {
	app, err := runningApp()
	if err != nil {
		return nil
	}
	return operator.PoliciesOf(app.operatedPolicies())
}

func totalsOfNode() (all []fleet.Total) {
	for _, total := range common.Totals() {
		all = append(all, fleet.Total(total))
	}
	return all
}

// problemsOfNode returns the problems of the store of the running configuration.
func problemsOfNode() []string {
	app, err := runningApp()
	if err != nil {
		return nil
	}
	return app.store.opened.Problems()
}

// pooledStore.join lets the other nodes that count in the same Redis see this process. Without
// Redis, it does nothing.
func (s *pooledStore) join() {
	if s.opened.Redis != nil {
		s.joined.Do(func() { s.member = fleet.Join(s.opened.Redis, thisNode) })
	}
}

// pooledStore.leave removes this process from the nodes that others see in Redis. It does nothing
// if join was not called.
func (s *pooledStore) leave() {
	s.joined.Do(func() {}) // from now on, join does nothing
	if s.member != nil {
		s.member.Close()
	}
}

// otherNodes returns a function that reads the reports of all nodes of the same Redis, or nil
// without Redis.
func (s *pooledStore) otherNodes() func(context.Context) (*fleet.Reading, error) {
	if s.opened.Redis == nil {
		return nil
	}
	return func(ctx context.Context) (*fleet.Reading, error) { return fleet.Read(ctx, s.opened.Redis) }
}

// followNodes returns a function that reads the events of all nodes of the same Redis, or nil
// without Redis.
func (s *pooledStore) followNodes() fleet.FollowFunc {
	if s.opened.Redis == nil {
		return nil
	}
	return fleet.In(s.opened.Redis)
}
