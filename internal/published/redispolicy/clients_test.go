// SPDX-License-Identifier: Apache-2.0

package redispolicy

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/follow"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/request"
)

const (
	clientsTried  = 30
	limitOfClient = 40
	roundsOfStep  = 5
)

// node stands for one process that follows the policy and keeps its counters in Redis.
type node struct {
	policy *live.Policy
	store  *store.Store
}

func newNode(t *testing.T, redis *redistest.Server) *node {
	t.Helper()
	opened, err := store.Open(store.Options{Redis: &redisstore.Options{URL: redis.URL(), Timeout: redisstore.TimeoutMax}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	quiet := slog.New(slog.DiscardHandler)
	source, err := follow.New(follow.Options{Origin: &Origin{opened.Redis, "shop"}, Policy: "shop", Keys: []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)}, ByClient: true,
		Node: "n", Logger: quiet, Every: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p, err := live.Open(live.Options{Source: source, Verifiers: live.NewVerifiers(quiet), Metrics: metrics.New(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	if err := p.Follow(); err != nil {
		t.Fatal(err)
	}
	return &node{p, opened}
}

// node.decide decides a request of a client. It returns the version of the policy that decided the
// request, and whether the request was admitted.
func (n *node) decide(ctx context.Context, client int) (version string, admitted bool, err error) {
	var plan core.Plan
	a := &request.Attributes{PathText: "/", Headers: map[string]string{"X-User": fmt.Sprint("client-", client)}, Time: counter.Micros(time.Now().UnixMicro())}
	v := n.policy.Current().Add(&plan, a)
	if err := n.store.Requests.Take(ctx, plan.Checks(), plan.Results()); err != nil {
		return "", false, err
	}
	d := plan.Decide()
	v.Count(&plan, &d)
	return v.ID, !d.Denied(), nil
}

// stepped publishes a candidate to a growing share of the clients, step by step.
type stepped struct {
	t     *testing.T
	nodes []*node
	text  []byte
	last  int64 // generation
	now   *policyfile.Document
	next  *policyfile.Document
}

// stepped.publish publishes the candidate to a share of the clients, in ten-thousandths. For 0 it
// withdraws the candidate, and for 10,000 it puts the candidate into force for all.
func (s *stepped) publish(share int32) {
	s.t.Helper()
	s.last++
	m := published.Message{Policy: "shop", Generation: s.last, Now: published.Content{Revision: 1, Document: s.now}}
	switch share {
	case 0:
	case core.PlacesAll:
		m.Now = published.Content{Revision: 2, Document: s.next}
	default:
		m.Candidate = &published.Candidate{Content: published.Content{Revision: 2, Document: s.next}, Share: share, Clients: true}
	}
	text, err := m.Seal(signer)
	if err != nil {
		s.t.Fatal(err)
	}
	if ok, err := Swap(s.t.Context(), s.nodes[0].store.Redis, "shop", s.text, text); err != nil || !ok {
		s.t.Fatal(ok, err)
	}
	s.text = text
}

// stepped.arrives waits until all nodes have received what the method named publish has published
// for this share.
func (s *stepped) arrives(share int32) {
	s.t.Helper()
	for _, n := range s.nodes {
		eventually.Until(s.t, patience, "a node has the publication", func() bool {
			d := n.policy.Current().Document
			c := d.Candidate()
			switch share {
			case 0:
				return c == nil && d.Version() == s.now.Version()
			case core.PlacesAll:
				return c == nil && d.Version() == s.next.Version()
			}
			return c != nil && c.Share == share
		})
	}
}

// stepped.round lets each node decide a request of each client. It returns, by client, the version
// of the policy that decided, or nil if the nodes decided by different versions.
func (s *stepped) round(admitted []atomic.Int64) map[int]string {
	of := make([]map[int]string, len(s.nodes))
	var asking sync.WaitGroup
	for i, n := range s.nodes {
		of[i] = map[int]string{}
		asking.Go(func() {
			for client := range clientsTried {
				version, ok, err := n.decide(s.t.Context(), client)
				if err != nil {
					s.t.Error(err)
				}
				if of[i][client] = version; ok {
					admitted[client].Add(1)
				}
			}
		})
	}
	asking.Wait()
	if len(admitted) > 0 && !maps.Equal(of[0], of[1]) {
		return nil // the publication is on its way
	}
	return of[0]
}

// TestAShareOfTheClientsIsExact raises the share of the clients that have the candidate step by
// step, while two nodes over one Redis decide requests. It tests that a client never gets more than
// its limit, whichever policy decides, and that a client that has the candidate keeps it.
func TestAShareOfTheClientsIsExact(t *testing.T) {
	t.Parallel()
	for _, lease := range []string{"off", "auto"} {
		t.Run("lease "+lease, func(t *testing.T) {
			t.Parallel()
			steps(t, lease)
		})
	}
}

func steps(t *testing.T, lease string) {
	document := func(more string) *policyfile.Document {
		d, err := policyfile.Decode("p.yaml", policyfile.YAML, fmt.Appendf(nil, "name: shop\nidentify: [{header: {name: x-user, unverified: true}}]\non_error: deny\nrules:\n"+
			"- {name: api, limit: %d/30d, lease: %s}\n%s", limitOfClient, lease, more))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	redis := redistest.Start(t)
	s := &stepped{t: t, now: document(""), next: document("- {name: other, limit: 1000/30d, per: []}\n")}
	first, err := store.Open(store.Options{Redis: &redisstore.Options{URL: redis.URL(), Timeout: redisstore.TimeoutMax}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Close() })
	s.nodes = []*node{{store: first}}
	s.publish(0)
	s.nodes = []*node{newNode(t, redis), newNode(t, redis)}
	admitted := make([]atomic.Int64, clientsTried)
	before := map[int]string{}
	for _, share := range []int32{0, 100, 1000, 5000, 9000, core.PlacesAll} {
		if share > 0 {
			s.publish(share) // the nodes decide while the publication is on its way
		}
		for range roundsOfStep {
			s.round(admitted)
		}
		s.arrives(share)
		now := s.round(admitted)
		if now == nil {
			t.Fatalf("at %d, the nodes differ in who has the candidate", share)
		}
		for client, version := range now {
			if before[client] == s.next.Version() && version != s.next.Version() {
				t.Errorf("at %d, client %d does not have the candidate any more", share, client)
			}
		}
		before = now
	}
	for client := range admitted {
		if n := admitted[client].Load(); n > limitOfClient || lease == "off" && n < limitOfClient {
			t.Errorf("client %d: %d requests are admitted, and %d is the limit", client, n, limitOfClient)
		}
		if before[client] != s.next.Version() {
			t.Errorf("client %d does not have the candidate at last", client)
		}
	}
}

// TestAFrontThatCannotFollow tests a front that cannot decide by the client whether the candidate
// applies. Such a front enforces the policy in force, and logs this once.
func TestAFrontThatCannotFollow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m, err := published.Open(b.text(5, signer, 9), "shop", []ed25519.PublicKey{signer.Public().(ed25519.PublicKey)})
	if err != nil {
		t.Fatal(err)
	}
	m.Candidate.Share, m.Candidate.Clients = 1000, true
	text, err := m.Seal(signer)
	if err != nil {
		t.Fatal(err)
	}
	b.set(text)
	s := b.source(follow.Options{})
	for range 2 {
		if d, err := s.Load(); err != nil || d.Candidate() != nil || d.ByClient() || d.Rules[0].Limit[0] != "5/1m" {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if n := strings.Count(b.log.String(), "cannot decide by the client"); n != 1 {
		t.Errorf("the log has %d warnings: %s", n, b.log.String())
	}
	d, err := b.source(follow.Options{ByClient: true}).Load()
	if err != nil || !d.ByClient() || d.Published() != d.Version() {
		t.Fatalf("%+v, %v", d, err)
	}
	if c := d.Candidate(); c == nil || c.Share != 1000 || c.Document.Rules[0].Limit[0] != "9/1m" || c.Document.Published() != c.Document.Version() {
		t.Errorf("the candidate is %+v", c)
	}
	if d, err := b.source(follow.Options{Trial: true}).Load(); err != nil || d.Enabled == nil || *d.Enabled {
		t.Errorf("such a candidate is in shadow: %+v, %v", d, err)
	}
}
