// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

const (
	// secretKey is the key of the secret that the bridges of this Redis share. No rule's key has
	// this form.
	secretKey = "rl1:~secret:{~secret}"
	// secretBytesMin is the least length of a secret: 32 hexadecimal digits are 128 bits.
	secretBytesMin = 32
)

// SharedSecret returns the secret that the users of this Redis share. If Redis has none, proposal
// becomes the secret. SharedSecret uses only commands that [LeastPrivilege] allows, and does not
// affect the circuit breaker.
func (s *Store) SharedSecret(ctx context.Context, proposal string) (secret string, err error) {
	n := s.nodeOf(s.valuePlaceOf([]byte(secretKey)))
	switch {
	case n == nil:
		return "", s.unknown()
	case n.breaker.State() == BreakerOpen:
		return "", errBreakerOpen
	}
	ctx, cancel := context.WithTimeout(ctx, max(connectTimeMin, s.settings.timeout))
	defer cancel()
	if err := n.client.Do(ctx, "set", secretKey, proposal, "nx").Err(); err != nil && !errors.Is(err, redis.Nil) {
		s.rediscover() // the slot might have moved
		return "", failureOf(err)
	}
	if secret, err = n.client.Get(ctx, secretKey).Result(); err != nil {
		return "", failureOf(err)
	}
	if len(secret) < secretBytesMin {
		return "", fmt.Errorf("the value at %q has %d bytes, and a secret has at least %d: delete it", secretKey, len(secret), secretBytesMin)
	}
	return secret, nil
}
