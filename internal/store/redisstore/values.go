// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// This file reads and writes plain values in addition to the counters, on the servers of their
// keys. The functions of this file do not affect the circuit breakers, and do not call a server
// whose breaker is open.

// ValueBytesMax is the length of the longest value that can be read. A longer reply ends its
// connection.
const ValueBytesMax = replyStringMax

// Values reads the values of keys, in one pipeline for each server. The element values[i] becomes
// the value of keys[i]: nil if there is none, and empty but not nil if it is not a string. Values
// returns at the latest when ctx is done. The error is of KindSlow if a server has not answered the
// read, but has answered calls that were sent after it.
func (s *Store) Values(ctx context.Context, keys []string, values [][]byte) error {
	return s.perNode(keys, func(n *node, of []int) error { return s.valuesOf(ctx, n, of, keys, values) })
}

// perNode calls the function named do for each server of the keys, in parallel, with the indexes of
// its keys. perNode waits for all of these calls, and joins their errors.
func (s *Store) perNode(keys []string, do func(n *node, of []int) error) error {
	groups := map[*node][]int{}
	for i, key := range keys {
		n, err := s.valueNode(key)
		if err != nil {
			return err
		}
		groups[n] = append(groups[n], i)
	}
	var calls sync.WaitGroup
	errs := make([]error, 0, len(groups))
	var mu sync.Mutex
	for n, of := range groups {
		calls.Go(func() {
			if err := do(n, of); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	return errors.Join(errs...)
}

// valuesOf reads the keys with the given indexes from one server.
func (s *Store) valuesOf(ctx context.Context, n *node, of []int, keys []string, values [][]byte) error {
	return s.valuesFrom(ctx, holder{node: n}, of, keys, values, redirectsMax)
}

// redirectsMax is how often a read of a value follows a redirect: to the server that has the slot
// now, and to the one to which the slot is moving.
const redirectsMax = 2

// A holder is the server that has a key, perhaps while it does not own the key's slot yet.
type holder struct {
	node   *node
	asking bool
}

// valuesFrom reads the keys with the given indexes from their holder, and from the servers to which
// it redirects. While a slot moves, its server redirects for each key that it does not have. If
// these redirects were not followed, a client with a made-up name in that slot would make the read
// fail for all other clients.
func (s *Store) valuesFrom(ctx context.Context, from holder, of []int, keys []string, values [][]byte, redirects int) error {
	commands, sent := make([]*redis.StringCmd, len(of)), s.clock()
	_, _ = from.node.values.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, index := range of {
			if from.asking {
				pipe.Do(ctx, "asking")
			}
			commands[i] = pipe.Get(ctx, keys[index])
		}
		return nil
	})
	var elsewhere map[holder][]int
	for i, index := range of {
		values[index] = nil
		switch value, one := commands[i].Bytes(); {
		case one == nil:
			values[index] = value
		case redis.HasErrorPrefix(one, "WRONGTYPE"):
			values[index] = []byte{}
		case errors.Is(one, redis.Nil):
		default:
			if to, ok := s.redirected(from.node, one); ok && redirects > 0 {
				if elsewhere == nil {
					elsewhere = make(map[holder][]int)
				}
				elsewhere[to] = append(elsewhere[to], index)
				continue
			}
			s.rediscover() // because the slot may have moved
			failure := failureOf(one)
			if failure.Kind == KindTimeout && from.node.answersSince(sent) {
				return errSlow
			}
			return failure
		}
	}
	for to, of := range elsewhere {
		if err := s.valuesFrom(ctx, to, of, keys, values, redirects-1); err != nil {
			return err
		}
	}
	return nil
}

// redirected returns the server to which a reply redirects. The result named ok is false for other
// replies, and if that server must not be called.
func (s *Store) redirected(asked *node, reply error) (to holder, ok bool) {
	asks := redis.HasErrorPrefix(reply, "ASK")
	if s.cluster == nil || !asks && !redis.HasErrorPrefix(reply, "MOVED") {
		return holder{}, false
	}
	slot, addr, ok := parseRedirection(reply.Error(), asked.address.target)
	if !ok {
		return holder{}, false
	}
	to = holder{s.cluster.node(addr), asks}
	if !asks {
		s.rediscover()
		to.node = s.cluster.learn(slot, addr)
	}
	return to, to.node != nil && to.node.breaker.State() != BreakerOpen
}

// valueNode returns the server that holds a key.
func (s *Store) valueNode(key string) (*node, error) {
	n := s.nodeOf(s.valuePlaceOf([]byte(key)))
	switch {
	case n == nil:
		return nil, s.unknown()
	case n.breaker.State() == BreakerOpen:
		return nil, errBreakerOpen
	}
	return n, nil
}

// DoFor runs a command on the server that holds the key. The key need not be part of the command.
// An error reply of Redis is returned unchanged; for an absent value the error is [redis.Nil].
func (s *Store) DoFor(ctx context.Context, key string, command ...any) (reply any, err error) {
	n, err := s.valueNode(key)
	if err != nil {
		return nil, err
	}
	return s.answered(n.values.Do(ctx, command...))
}

// DoAll runs one command for each key, each on the server that holds the key, in one pipeline for
// each server. The replies and errors are like those of DoFor. The result named err is the error of
// the pipelines themselves.
func (s *Store) DoAll(ctx context.Context, keys []string, commands [][]any) (replies []any, errs []error, err error) {
	replies, errs = make([]any, len(keys)), make([]error, len(keys))
	err = s.perNode(keys, func(n *node, of []int) error {
		sent := make([]*redis.Cmd, len(of))
		_, _ = n.values.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, index := range of {
				sent[i] = pipe.Do(ctx, commands[index]...)
			}
			return nil
		})
		for i, index := range of {
			replies[index], errs[index] = s.answered(sent[i])
		}
		return nil
	})
	return replies, errs, err
}

// Store.answered returns the reply to a command, as DoFor describes it.
func (s *Store) answered(command *redis.Cmd) (reply any, err error) {
	reply, err = command.Result()
	var refused redis.Error
	if err != nil && !errors.As(err, &refused) {
		return nil, failureOf(err)
	}
	if redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
		s.rediscover()
		return nil, failureOf(err)
	}
	return reply, err
}

// Listen calls the function named received for each message on a channel, on the server that holds
// the key, until ctx is done or the connection ends. It calls the function named begun as soon as
// the subscription is active.
func (s *Store) Listen(ctx context.Context, key, channel string, begun func(), received func(message string)) error {
	n, err := s.valueNode(key)
	if err != nil {
		return err
	}
	subscription := n.client.(*redis.Client).Subscribe(ctx, channel)
	// because not all methods of a subscription respect their context
	closing := func() { _ = subscription.Close() }
	defer closing()
	defer context.AfterFunc(ctx, closing)()
	defer context.AfterFunc(n.ctx, closing)() // the server was replaced
	for silent := false; ; {
		message, err := subscription.ReceiveTimeout(ctx, listenPing)
		var network net.Error
		switch {
		case err == nil:
			silent = false
			switch m := message.(type) {
			case *redis.Subscription:
				begun()
			case *redis.Message:
				received(m.Payload)
			}
		case silent || !errors.As(err, &network) || !network.Timeout():
			return failureOf(err)
		default:
			silent = true
			if err := subscription.Ping(ctx); err != nil {
				return failureOf(err)
			}
		}
	}
}
