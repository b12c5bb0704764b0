// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// scanCount is how many keys a server is asked to look at in one call of Keys.
const scanCount = 1000

// SetValues sets values of keys, in one pipeline for each server. A nil value removes the key. It
// returns at the latest when ctx is done; some values may then be set and others not.
func (s *Store) SetValues(ctx context.Context, keys []string, values [][]byte) error {
	groups := map[*node][]int{}
	for i, key := range keys {
		n, err := s.valueNode(key)
		if err != nil {
			return err
		}
		groups[n] = append(groups[n], i)
	}
	var writing sync.WaitGroup
	errs := make([]error, 0, len(groups))
	var mu sync.Mutex
	for n, of := range groups {
		writing.Go(func() {
			_, err := n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, i := range of {
					if values[i] == nil {
						pipe.Del(ctx, keys[i])
					} else {
						pipe.Set(ctx, keys[i], values[i], 0)
					}
				}
				return nil
			})
			if err != nil {
				s.rediscover() // a slot may have moved
				mu.Lock()
				errs = append(errs, failureOf(err))
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	return errors.Join(errs...)
}

// Keys calls each for the keys of all servers that match a pattern, some hundreds at a time, until
// it returns an error. A key that is written meanwhile may be missing, or come twice.
func (s *Store) Keys(ctx context.Context, pattern string, each func(keys []string) error) error {
	servers := s.nodes()
	if len(servers) == 0 {
		return s.unknown()
	}
	for _, n := range servers {
		for cursor := uint64(0); ; {
			keys, next, err := n.client.Scan(ctx, cursor, pattern, scanCount).Result()
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
