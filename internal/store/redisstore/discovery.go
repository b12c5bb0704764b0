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

// Intervals of discovery.
const (
	// askEvery is the interval between two rounds of discovery while there are no problems. Changes
	// are detected earlier by MOVED, by a server that fails, or by a call for which no server is
	// known.
	askEvery = 10 * time.Second
	// askEveryMin and askEveryMax bound the interval while something is wrong. The interval is
	// random, so that nodes do not query at the same time. The minimum also bounds the cost of many
	// MOVED replies.
	askEveryMin = 50 * time.Millisecond
	askEveryMax = 150 * time.Millisecond
)

// Store.follow keeps the list of servers current. In each round of discovery, it calls the function
// named ask.
func (s *Store) follow(ask func(context.Context) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-s.ctx.Done():
			return
		case <-s.rediscoverNow:
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
			s.reporter.recordFailures(time.Now(), failure, 0)
		}
		if first {
			s.discovery.Do(func() { close(s.discovered) })
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

// Store.patience returns the time until the next round. Only an open breaker brings the next round
// forward. A half-open one waits for a call to try the server, possibly forever, and discovery
// would not help.
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

// askCluster queries servers for the owners of the slots, until one answers whose epoch is not
// older than the known one. A server that was cut off has an older epoch. If all servers that
// answer have older epochs, the newest of their answers is adopted: the cluster may have been set
// up again.
func (s *Store) askCluster(ctx context.Context) error {
	var problems []error
	var stale *clusterView
	for _, addr := range s.discoveryOrder() {
		view, err := s.view(ctx, addr)
		switch {
		case err == nil && view.epoch >= s.epoch.Load():
			s.adopt(view)
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
		s.adopt(stale)
		return nil
	}
	return errors.Join(problems...)
}

// Store.adopt makes a view the current one.
func (s *Store) adopt(view *clusterView) {
	s.epoch.Store(view.epoch)
	for _, n := range s.cluster.apply(view.owners) {
		s.running.Go(n.close)
	}
}

// discoveryOrder returns the addresses to query, in order: servers that work, then the seeds, then
// the rest.
func (s *Store) discoveryOrder() (addrs []string) {
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

// Store.once calls the function named ask with a temporary client for a server.
func (s *Store) once(ctx context.Context, a address, ask func(context.Context, Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(connectTimeMin, s.settings.timeout))
	defer cancel()
	d := newDialer(a, s.settings.tls, s.settings.timeout, s.settings.timeout)
	options := clientOptions(a, d, 1)
	options.OnConnect, options.PoolSize, options.MaxIdleConns = nil, 1, 1
	client := redis.NewClient(options)
	defer func() {
		d.close()
		_ = client.Close()
	}()
	// When the store closes, do not wait for a server that hangs.
	stop := context.AfterFunc(ctx, d.close)
	defer stop()
	return ask(ctx, client)
}

// clusterView is a server's view of its cluster.
type clusterView struct {
	owners []owner
	epoch  int64 // the cluster's current epoch
}

// Store.view queries a server for its view of the cluster.
func (s *Store) view(ctx context.Context, addr string) (view *clusterView, err error) {
	err = s.once(ctx, s.settings.at(addr), func(ctx context.Context, client Client) error {
		ranges, err := client.Do(ctx, "cluster", "slots").Slice()
		if err != nil {
			return err
		}
		owners, err := readView(ranges, addr)
		if err != nil {
			return err
		}
		// The known epoch remains if the user has no right to run CLUSTER INFO.
		view = &clusterView{owners: owners, epoch: s.epoch.Load()}
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

// errNoView reports a reply to CLUSTER SLOTS that cannot be parsed.
var errNoView = errors.New("the reply to CLUSTER SLOTS cannot be parsed")

// errNoAddress reports that a server lists masters, but none of their addresses.
var errNoAddress = errors.New("it knows of no server that has slots and can be called: their addresses are lost; mend the cluster")

// readView reads the reply to CLUSTER SLOTS: ranges of slots, each with its master and replicas. A
// master whose address is lost (noaddr: it restarted without its nodes.conf, as another node) still
// owns slots and is listed with port 0. The ranges of such a master are omitted, because no server
// serves them; the other masters keep counting.
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
		host, _ := master[0].(string) // nil means the host of the server that answered
		port, okPort := master[1].(int64)
		if okPort && port == 0 {
			continue
		}
		addr, ok := completeAddress(host+":"+strconv.FormatInt(port, 10), asked)
		if !ok {
			return nil, errNoView
		}
		view = append(view, owner{int(first), int(last), addr})
	}
	switch {
	case len(view) == 0 && len(ranges) > 0:
		return nil, errNoAddress
	case len(view) == 0:
		return nil, errors.New("it knows of no server that has slots: it is not part of a cluster, or the cluster was not set up")
	}
	return view, nil
}
