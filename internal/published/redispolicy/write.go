// SPDX-License-Identifier: Apache-2.0

package redispolicy

import (
	"bytes"
	"context"
	_ "embed"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// channel is the channel on which changes of published policies are announced.
const channel = "rl1:~policies"

// keyPrefix begins the key of a policy.
const keyPrefix = "rl1:~policy:{~policy}:"

func keyOf(policy string) string { return keyPrefix + policy }

// swapScript replaces the value of a key if it is still the value that was read.
//
//go:embed swap.lua
var swapScript string

// Read returns the text of a policy in Redis, or nil.
func Read(ctx context.Context, store *redisstore.Store, policy string) ([]byte, error) {
	values := make([][]byte, 1)
	err := store.Values(ctx, []string{keyOf(policy)}, values)
	return values[0], err
}

// ReadAll reads the texts of several policies from Redis in one round trip. A text is nil if Redis
// does not have the policy.
func ReadAll(ctx context.Context, store *redisstore.Store, policies []string) ([][]byte, error) {
	keys, values := make([]string, len(policies)), make([][]byte, len(policies))
	for i, policy := range policies {
		keys[i] = keyOf(policy)
	}
	err := store.Values(ctx, keys, values)
	return values, err
}

// Swap replaces the text of a policy in Redis, if the present text equals old, and then notifies
// the nodes. If old and text are equal, Swap only notifies the nodes. Swap returns false if the
// present text differs from old.
func Swap(ctx context.Context, store *redisstore.Store, policy string, old, text []byte) (swapped bool, err error) {
	if !bytes.Equal(old, text) {
		reply, err := store.DoFor(ctx, keyOf(policy), "eval", swapScript, 1, keyOf(policy), old, text)
		if err != nil || reply != int64(1) {
			return false, err
		}
	}
	_, err = store.DoFor(ctx, keyOf(policy), "publish", channel, policy)
	return true, err
}
