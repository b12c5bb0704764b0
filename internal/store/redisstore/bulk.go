// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// scanCount is the number of keys that a server examines in one call of Keys.
const scanCount = 1000

// SetValues sets values of keys, in one pipeline for each server. A nil value removes the key. If
// ctx ends first, SetValues stops with an error; some values may then be set and others not.
func (s *Store) SetValues(ctx context.Context, keys []string, values [][]byte) error {
	return s.perNode(keys, func(n *node, of []int) error {
		err := s.setOn(ctx, n, of, keys, values)
		if err != nil {
			s.rediscover() // because a slot may have moved
			return failureOf(err)
		}
		return nil
	})
}

// setOn sets the values with the given indexes on one server. A call of MSET takes less time of the
// server and of the client than a SET for each key. The keys of a cluster are in different slots,
// so MSET cannot set them. An ACL user may lack the right to run MSET, and a server may lack the
// command.
func (s *Store) setOn(ctx context.Context, n *node, of []int, keys []string, values [][]byte) error {
	if s.cluster == nil && !n.setsSingly.Load() {
		err := setTogether(ctx, n.values, of, keys, values)
		if err == nil || !LacksRights(err) && !lacksCommand(err) {
			return err
		}
		n.setsSingly.Store(true)
	}
	_, err := n.values.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, i := range of {
			if values[i] == nil {
				pipe.Del(ctx, keys[i])
			} else {
				pipe.Set(ctx, keys[i], values[i], 0)
			}
		}
		return nil
	})
	return err
}

// setTogether sets values by one MSET, and removes keys by one DEL.
func setTogether(ctx context.Context, client redis.Cmdable, of []int, keys []string, values [][]byte) error {
	pairs, removed := make([]any, 0, 2*len(of)), []string(nil)
	for _, i := range of {
		if values[i] == nil {
			removed = append(removed, keys[i])
		} else {
			pairs = append(pairs, keys[i], values[i])
		}
	}
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		if len(pairs) > 0 {
			pipe.MSet(ctx, pairs...)
		}
		if len(removed) > 0 {
			pipe.Del(ctx, removed...)
		}
		return nil
	})
	return err
}

// Keys calls each(...) with the keys that match a pattern, on all servers. Each call gets the
// matches among about scanCount keys that one server has examined. Keys stops if each returns an
// error. A key that is written meanwhile may be missing, or be returned twice.
func (s *Store) Keys(ctx context.Context, pattern string, each func(keys []string) error) error {
	servers := s.nodes()
	if len(servers) == 0 {
		return s.unknown()
	}
	for _, n := range servers {
		for cursor := uint64(0); ; {
			keys, next, err := n.values.Scan(ctx, cursor, pattern, scanCount).Result()
			if err != nil {
				return failureOf(err)
			}
			if len(keys) > 0 {
				if err := each(keys); err != nil {
					return err
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return nil
}

// ErrPosition is wrapped by the error for a position that Scan has not returned, or whose server is
// no longer one of the store's.
var ErrPosition = errors.New("no position of this store")

// Scan returns keys that match a pattern, after the position that the previous call returned. The
// position "" stands for the beginning in a call, and for the end in a result. A server examines
// about count keys in one call. A key that is written meanwhile may be missing, or come twice.
func (s *Store) Scan(ctx context.Context, pattern, after string, count int) (keys []string, next string, err error) {
	servers := slices.SortedFunc(slices.Values(s.nodes()), func(a, b *node) int {
		return strings.Compare(a.address.target, b.address.target)
	})
	if len(servers) == 0 {
		return nil, "", s.unknown()
	}
	at, cursor := 0, uint64(0)
	if after != "" {
		text, target, _ := strings.Cut(after, "@")
		cursor, err = strconv.ParseUint(text, 10, 64)
		at = slices.IndexFunc(servers, func(n *node) bool { return n.address.target == target })
		if err != nil || at < 0 {
			return nil, "", fmt.Errorf("%w: %.100q", ErrPosition, after)
		}
	}
	keys, cursor, err = servers[at].values.Scan(ctx, cursor, pattern, int64(count)).Result()
	if err != nil {
		return nil, "", failureOf(err)
	}
	if cursor == 0 {
		at++
	}
	if at < len(servers) {
		next = strconv.FormatUint(cursor, 10) + "@" + servers[at].address.target
	}
	return keys, next, nil
}
