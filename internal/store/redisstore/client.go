// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Client has the methods of *[redis.Client] that Penstock uses: it is a client of one server. It is
// an interface to save compile time. A redis.Client contains a weak.Pointer[redis.Client], and the
// compiler compiles the 500 methods behind it again in each package that uses a type with a field
// of type redis.Client. That takes 2 s for each package, and adds 9 MB to its object file. The same
// holds for redis.Options and redis.PubSub, but not for redis.Cmdable. See
// TestTheClientOfRedisIsCompiledInFewPackages.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	Process(ctx context.Context, cmd redis.Cmder) error
	Close() error
}
