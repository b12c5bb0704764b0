// SPDX-License-Identifier: Apache-2.0

package writeoff

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/lua"
)

// Redis is the Redis of a region.
type Redis interface {
	// Values reads the values of keys. The value of an absent key is nil.
	Values(ctx context.Context, keys []string, values [][]byte) error
	// Eval executes a script.
	Eval(ctx context.Context, script *lua.Script, call redisstore.ScriptCall) (reply any, err error)
}

// writesMax bounds the attempts to write a state that others write at the same time.
const writesMax = 8

// Read returns the encoded state of the regions from Redis, or nil if none is stored.
func Read(ctx context.Context, r Redis) ([]byte, error) {
	var value [1][]byte
	err := r.Values(ctx, []string{Key}, value[:])
	return value[0], err
}

// Update changes the state in Redis, and returns it. It calls the function named change with the
// state that it has read. If another process has written the state meanwhile, Update reads it and
// calls change again. The state is not written if it stays the same. The argument named last, if
// not 0, is the last instant of Redis's clock at which the state may be written. Such a bound is
// needed because a command can reach Redis long after its sender has given up.
func Update(ctx context.Context, r Redis, last counter.Micros, change func(s *State)) (State, error) {
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
		if err := Check(s.Entries); err != nil {
			return State{}, err
		}
		text, err := s.Text()
		if err != nil || bytes.Equal(text, old) {
			return s, err
		}
		done, err := r.Eval(ctx, lua.Writeoffs, redisstore.ScriptCall{Keys: []string{Key}, Args: []any{old, text, int64(last / counter.Second)}})
		if err != nil {
			return State{}, err
		}
		switch n, _ := done.(int64); n {
		case 1:
			return s, nil
		case -1:
			return State{}, fmt.Errorf("the state was not written: it came too late to the Redis, after %v", last)
		}
	}
	return State{}, errors.New("the state of the regions is written by others all the time")
}
