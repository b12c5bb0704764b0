// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// How those are asked who know the servers.
const (
	// askEvery is how often they are asked when all is well: changes are told by MOVED, by a server that fails, or by a call for
	// which no server is known.
	askEvery = 10 * time.Second
	// askEveryMin and askEveryMax bound the time between two questions when something is not; it is random so that nodes do
	// not ask in step. The least also bounds what a storm of MOVED costs.
	askEveryMin = 50 * time.Millisecond
	askEveryMax = 150 * time.Millisecond
)

// follow keeps in mind which servers there are. ask finds out, and reports whether it could.
func (s *Store) follow(ask func(context.Context) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-s.ctx.Done():
			return
		case <-s.nudged:
		case <-timer.C:
		}
		err := ask(s.ctx)
		if s.ctx.Err() != nil {
			return
		}
		if err == nil {
			s.lost.Store(nil)
		} else {
			failure := failureOf(err)
			s.lost.Store(failure)
			s.reporter.failed(time.Now(), failure, 0)
		}
		if first {
			close(s.asked)
		}
		pause := askEveryMin + rand.N(askEveryMax-askEveryMin)
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(pause):
		}
		timer.Stop()
		timer.Reset(s.patience(err))
	}
}

// patience returns after what time to ask again. A server that is half open waits for a call that tries it, for good where none comes:
// asking others about it would not help.
func (s *Store) patience(err error) time.Duration {
	if err != nil {
		return 0
	}
	for _, n := range s.nodes() {
		if n.breaker.State() == BreakerOpen {
			return 0
		}
	}
	return askEvery
}

// askCluster asks servers which one has which slots, until one answers that knows of as many elections as were known. One that
// was cut off from the others knows of fewer; it is believed if nobody knows better, as after the cluster was made anew.
func (s *Store) askCluster(ctx context.Context) error {
	var problems []error
	var stale *clusterView
	for _, addr := range s.whoKnows() {
		view, err := s.view(ctx, addr)
		switch {
		case err == nil && view.epoch >= s.epoch.Load():
			s.believe(view)
			return nil
		case err == nil:
			if stale == nil || view.epoch > stale.epoch {
				stale = view
			}
		case len(problems) < checkProblemsMax:
			problems = append(problems, fmt.Errorf("%s: %w", addr, err))
		}
	}
	if stale != nil && ctx.Err() == nil {
		s.believe(stale)
		return nil
	}
	return errors.Join(problems...)
}

// believe takes a view for true.
func (s *Store) believe(view *clusterView) {
	s.epoch.Store(view.epoch)
	for _, n := range s.cluster.apply(view.owners) {
		s.running.Go(n.close)
	}
}

// whoKnows returns the addresses to ask, in the order to do so: servers that work, then those that were given, then
// the rest.
func (s *Store) whoKnows() (addrs []string) {
	nodes := s.nodes()
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, n := range nodes {
		if n.breaker.State() == BreakerClosed {
			addrs = append(addrs, n.address.target)
		}
	}
	for _, addr := range s.settings.seeds {
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	for _, n := range nodes {
		if !slices.Contains(addrs, n.address.target) {
			addrs = append(addrs, n.address.target)
		}
	}
	return addrs
}

// once calls ask with a client of its own of a server, which is asked nothing else.
func (s *Store) once(ctx context.Context, a address, ask func(context.Context, *redis.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(connectTimeMin, s.settings.timeout))
	defer cancel()
	d := newDialer(a, s.settings.tls, s.settings.timeout)
	options := clientOptions(a, d, 1)
	options.OnConnect, options.PoolSize, options.MaxIdleConns = nil, 1, 1
	client := redis.NewClient(options)
	defer func() {
		d.close()
		_ = client.Close()
	}()
	stop := context.AfterFunc(ctx, d.close) // the store closes, and nobody waits for a server that hangs
	defer stop()
	return ask(ctx, client)
}

// clusterView is what a server knows of its cluster.
type clusterView struct {
	owners []owner
	epoch  int64 // counts elections
}

// view asks a server which one has which slots.
func (s *Store) view(ctx context.Context, addr string) (view *clusterView, err error) {
	err = s.once(ctx, s.settings.at(addr), func(ctx context.Context, client *redis.Client) error {
		ranges, err := client.Do(ctx, "cluster", "slots").Slice()
		if err != nil {
			return err
		}
		owners, err := readView(ranges, addr)
		if err != nil {
			return err
		}
		view = &clusterView{owners: owners, epoch: s.epoch.Load()} // for a user who may not ask
		info, err := client.Do(ctx, "cluster", "info").Text()
		if redis.IsPermissionError(err) {
			return nil
		}
		if epoch, wrong := strconv.ParseInt(infoField(info, "cluster_current_epoch"), 10, 64); wrong == nil {
			view.epoch = epoch
		}
		return err
	})
	return view, err
}

// errNoView says that a server's answer to CLUSTER SLOTS is none.
var errNoView = errors.New("the answer to cluster slots is none that is known")

// errNobody says that a server knows masters, and of none where it is.
var errNobody = errors.New("it knows of no server that has slots and can be called: their addresses are lost; mend the cluster")

// readView reads the answer to CLUSTER SLOTS: ranges of slots with their master, and then their replicas. A master whose address
// is lost (noaddr: it came back without its nodes.conf, as another node) still has slots, and stands there with port 0: they are
// left out, since nobody serves them. The others count on.
func readView(ranges []any, asked string) (view []owner, err error) {
	for _, entry := range ranges {
		part, _ := entry.([]any)
		if len(part) < 3 {
			return nil, errNoView
		}
		first, okFirst := part[0].(int64)
		last, okLast := part[1].(int64)
		master, _ := part[2].([]any)
		if !okFirst || !okLast || first < 0 || last < first || last >= slotCount || len(master) < 2 {
			return nil, errNoView
		}
		host, _ := master[0].(string) // nil: the host that was asked
		port, okPort := master[1].(int64)
		if okPort && port == 0 {
			continue
		}
		addr, ok := completed(host+":"+strconv.FormatInt(port, 10), asked)
		if !ok {
			return nil, errNoView
		}
		view = append(view, owner{int(first), int(last), addr})
	}
	switch {
	case len(view) == 0 && len(ranges) > 0:
		return nil, errNobody
	case len(view) == 0:
		return nil, errors.New("it knows of no server that has slots: it is in no cluster, or the cluster was not set up")
	}
	return view, nil
}
