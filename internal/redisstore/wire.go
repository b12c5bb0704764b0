// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/lua"
)

// takeCmd is one call of the script. It owns copies of all its bytes: a caller may leave at its deadline while the
// command is still being written.
type takeCmd struct {
	*redis.StringCmd
}

// newTake returns the command that asks checks, which must have passed core.ValidateChecks. pinned is the instant to
// decide at; 0 is Redis' own clock.
func newTake(ctx context.Context, pinned core.Micros, checks []core.Check) *takeCmd {
	_ = pinned
	return &takeCmd{redis.NewStringCmd(ctx, "evalsha", lua.TakeSHA, len(checks))}
}

// NoRetry keeps go-redis from sending the command a second time after an error that leaves open whether it was
// executed: a charge must not be made twice.
func (c *takeCmd) NoRetry() bool { return true }

// Clone returns a copy that is not retried either.
func (c *takeCmd) Clone() redis.Cmder { return &takeCmd{c.StringCmd.Clone().(*redis.StringCmd)} }

// results decodes the reply into results.
func (c *takeCmd) results(checks []core.Check, results []core.Result) error {
	return errors.New("not yet")
}
