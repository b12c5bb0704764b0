// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// onceMax and cutMax are the longest times until all nodes enforce a change. onceMax applies
	// with Pub/Sub, and cutMax without.
	onceMax = time.Second
	cutMax  = 36 * time.Second
	// changing is the number of customers whose limits are changed in turn. All nodes know these
	// customers.
	changing = 10
	// usual is the limit of a customer without a limit of its own, in the first revision.
	usual = 1_000_000
	// onceLook and cutLook are the pauses between two requests to a node that has not changed yet.
	onceLook = 2 * time.Millisecond
	cutLook  = 200 * time.Millisecond
)

// shop returns a policy with the name shop and one rule, whose limit is the given number an hour.
func shop(limit int) string {
	return fmt.Sprintf("name: shop\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: api, limit: %s}]\n", hourly(limit))
}

// fleet is a control plane with nodes that take the policy and the customers from Redis.
type fleet struct {
	*plane
	redis    *redis.Client
	nodes    []*node
	revision int
	limits   []int // the limits of these customers, and after them the limit of the policy
}

// inForce measures the time from a write to the API until all nodes enforce the change.
func (c *controlBench) inForce() error {
	f, err := c.fleet()
	if err != nil {
		return err
	}
	var customers, policies []time.Duration
	for i := range c.writes {
		span, err := f.change(i%changing, onceLook)
		if err != nil {
			return err
		}
		customers = append(customers, span)
	}
	for range c.revisions {
		span, err := f.change(changing, onceLook)
		if err != nil {
			return err
		}
		policies = append(policies, span)
	}
	nodes := fmt.Sprintf("%d Caddys", controlNodes)
	_, p99, text := spread(customers)
	c.reached("a customer's limit, from the request to the API until it is in force on all nodes", "p99 ≤ 1 s", p99 <= onceMax, text,
		fmt.Sprintf("%d changes, %s", len(customers), nodes))
	_, p99, text = spread(policies)
	c.reached("a policy, from the request that writes it, with its publication, until it is in force on all nodes", "p99 ≤ 1 s", p99 <= onceMax, text,
		fmt.Sprintf("%d revisions, %s", len(policies), nodes))
	return f.withoutPubSub()
}

// withoutPubSub measures what inForce measures, after the nodes have lost the right to subscribe.
func (f *fleet) withoutPubSub() error {
	if err := f.redis.Do(context.Background(), "ACL", "SETUSER", "nodes", "resetchannels").Err(); err != nil {
		return err
	}
	var mu sync.Mutex
	var spans []time.Duration
	var problems []error
	for range f.c.cuts {
		var all sync.WaitGroup
		for i := range changing + 1 {
			all.Go(func() {
				span, err := f.change(i, cutLook)
				mu.Lock()
				defer mu.Unlock()
				spans, problems = append(spans, span), append(problems, err)
			})
		}
		all.Wait()
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	_, _, text := spread(spans)
	f.c.reached("the same without Pub/Sub, which an ACL denies to the nodes", "≤ 36 s", slices.Max(spans) <= cutMax, text,
		fmt.Sprintf("%d changes of customers and %d of the policy, %d Caddys", f.c.cuts*changing, f.c.cuts, controlNodes))
	return nil
}

// controlBench.fleet starts a control plane and the nodes, and waits until the nodes know the
// customers.
func (c *controlBench) fleet() (*fleet, error) {
	_, address, err := c.bench.redis()
	if err != nil {
		return nil, err
	}
	f := &fleet{redis: redis.NewClient(&redis.Options{Addr: address}), limits: make([]int, changing+1)}
	c.closers = append(c.closers, func() { _ = f.redis.Close() })
	if err := f.redis.Do(context.Background(), "ACL", "SETUSER", "nodes", "on", ">secret", "~*", "&*", "+@all").Err(); err != nil {
		return nil, err
	}
	key := filepath.Join(c.dir, "policy.key")
	public, err := command(nil, "control", "policy", "key", key)
	if err != nil {
		return nil, err
	}
	if f.plane, err = c.plane(address, "--policy-key", key); err != nil {
		return nil, err
	}
	f.revision, f.limits[changing] = 1, usual
	if err := f.putPolicy(1, shop(usual)); err != nil {
		return nil, err
	}
	for i := range changing {
		f.limits[i] = usual + 1 + i
		if err := f.limit(fmt.Sprint("c", i), f.limits[i]); err != nil {
			return nil, err
		}
	}
	if err := f.process.until(planePatience, "publishes the policy", func() bool {
		return f.redis.Exists(context.Background(), "rl1:~policy:{~policy}:shop").Val() == 1
	}); err != nil {
		return nil, err
	}
	return f, f.startNodes(address, strings.TrimSpace(public))
}

// startNodes starts the Caddys.
func (f *fleet) startNodes(redis, key string) error {
	global := "\tpenstock {\n\t\tstore redis redis://nodes:secret@" + redis + " {\n\t\t\ttimeout 1s\n\t\t}\n\t\tdirectory\n\t}"
	for i := range controlNodes {
		name := fmt.Sprint("node-", i)
		site := fmt.Sprintf("\tpenstock {\n\t\tpolicy redis shop {\n\t\t\tkey %s\n\t\t\tstate_dir %s\n\t\t\tnode %s\n\t\t}\n\t}\n\trespond \"ok\"",
			key, filepath.Join(f.c.dir, name), name)
		_, url, err := f.c.caddyNode(caddySetting{global: global, site: site})
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, newNode(url))
	}
	began := time.Now()
	for i := range f.limits { // all nodes have the policy, and know the customers
		if _, err := f.await(i, f.limits[i], began, cutLook); err != nil {
			return err
		}
	}
	return nil
}

// fleet.change changes the limit of the customer i and waits until all nodes have the new limit. If
// i equals the constant named changing, it changes the limit of the policy instead.
func (f *fleet) change(i int, look time.Duration) (time.Duration, error) {
	f.limits[i] += 100
	began, err := time.Now(), error(nil)
	if i == changing {
		f.revision++
		err = f.putPolicy(f.revision, shop(f.limits[i]))
	} else {
		err = f.limit(fmt.Sprint("c", i), f.limits[i])
	}
	if err != nil {
		return 0, err
	}
	return f.await(i, f.limits[i], began, look)
}

// fleet.await waits until all nodes report the given limit for the customer i. It returns the time
// since the argument named began.
func (f *fleet) await(i, limit int, began time.Time, look time.Duration) (time.Duration, error) {
	const patience = 90 * time.Second
	user, want, deadline := fmt.Sprint("c", i), fmt.Sprint(limit), time.Now().Add(patience)
	problems := make([]error, len(f.nodes))
	var all sync.WaitGroup
	for n, node := range f.nodes {
		all.Go(func() {
			for {
				_, got, err := node.ask(user)
				switch {
				case err != nil:
					problems[n] = err
					return
				case got == want:
					return
				case time.Now().After(deadline):
					problems[n] = fmt.Errorf("node %d has the limit %q for %s after %v, want %s", n, got, user, patience, want)
					return
				}
				time.Sleep(look)
			}
		})
	}
	all.Wait()
	return time.Since(began), errors.Join(problems...)
}
