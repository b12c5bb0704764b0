// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Client is a *[redis.Client], as far as Penstock uses it: a client of one server. It is an
// interface because of the compiler. A redis.Client contains a weak.Pointer[redis.Client], and the
// compiler compiles the 500 methods of this instance of weak.Pointer again in each package that
// sees a type with such a field, in its own package or in another. That takes 2 s a package, and
// each object file has 9 MB more. The same holds for redis.Options and redis.PubSub, but not for
// redis.Cmdable. See TestTheClientOfRedisIsCompiledInFewPackages.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	Process(ctx context.Context, cmd redis.Cmder) error
	Close() error
}
