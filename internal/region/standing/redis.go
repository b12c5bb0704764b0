// SPDX-License-Identifier: Apache-2.0

package standing

import (
	"bytes"
	"context"
	"errors"
)

// Redis is the Redis of a region.
type Redis interface {
	// Values reads the values of keys. The value of an absent key is nil.
	Values(ctx context.Context, keys []string, values [][]byte) error
	// DoFor runs a command on the server of a key.
	DoFor(ctx context.Context, key string, command ...any) (any, error)
}

// replace sets a value if the present one is that of ARGV[1], and "" stands for an absent one. It
// needs no rights beyond those of a user that counts.
const replace = `if (redis.call('get', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], ARGV[2])
return 1`

// writesMax bounds the attempts to write a state that others write at the same time.
const writesMax = 8

// Read returns the value of the state.
func Read(ctx context.Context, r Redis) ([]byte, error) {
	var value [1][]byte
	err := r.Values(ctx, []string{Key}, value[:])
	return value[0], err
}

// Update changes the state in Redis, and returns it. The function change works on what Redis holds,
// and may be called again. The state is not written if it stays the same.
func Update(ctx context.Context, r Redis, change func(s *State)) (State, error) {
	for range writesMax {
		old, err := Read(ctx, r)
		if err != nil {
			return State{}, err
		}
		s, err := Parse(old)
		if err != nil {
			return State{}, err
		}
		change(&s)
		text, err := s.Text()
		if err != nil || bytes.Equal(text, old) {
			return s, err
		}
		sha, err := r.DoFor(ctx, Key, "SCRIPT", "LOAD", replace)
		if err != nil {
			return State{}, err
		}
		done, err := r.DoFor(ctx, Key, "EVALSHA", sha, 1, Key, old, text)
		if err != nil {
			return State{}, err
		}
		if n, _ := done.(int64); n == 1 {
			return s, nil
		}
	}
	return State{}, errors.New("the state of the regions is written by others all the time")
}
