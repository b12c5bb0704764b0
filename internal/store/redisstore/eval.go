// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/lua"
)

// ScriptCall is one execution of a script other than that of Take.
type ScriptCall struct {
	Keys []string // the keys, all of them in one hash slot
	Args []any
}

// EvalAll executes a script for each call, each on the server that holds its keys, in one pipeline
// for each server. The replies and errors are like those of [Store.DoAll]. After an error of the
// connection, the script can be executed a second time, so a second execution must have no further
// effect.
func (s *Store) EvalAll(ctx context.Context, script *lua.Script, calls []ScriptCall) (replies []any, errs []error, err error) {
	keys, commands := make([]string, len(calls)), make([][]any, len(calls))
	for i := range calls {
		command := append(make([]any, 0, 3+len(calls[i].Keys)+len(calls[i].Args)), "evalsha", script.SHA, len(calls[i].Keys))
		for _, key := range calls[i].Keys {
			command = append(command, key)
		}
		keys[i], commands[i] = calls[i].Keys[0], append(command, calls[i].Args...)
	}
	replies, errs, err = s.DoAll(ctx, keys, commands)
	var again []int
	for i := range errs {
		if redis.HasErrorPrefix(errs[i], "NOSCRIPT") {
			again = append(again, i)
		}
	}
	if err != nil || len(again) == 0 {
		return replies, errs, err
	}
	return replies, errs, s.evalUnknown(ctx, script, again, keys, commands, replies, errs)
}

// Store.evalUnknown loads the script on the servers that did not know it, and repeats their
// commands. The argument named again has the indexes of these commands.
func (s *Store) evalUnknown(ctx context.Context, script *lua.Script, again []int, keys []string, commands [][]any, replies []any, errs []error) error {
	loaded := make(map[*node]bool)
	var keysAgain []string
	var commandsAgain [][]any
	for _, i := range again {
		n, err := s.valueNode(keys[i])
		if err != nil {
			return err
		}
		if !loaded[n] {
			if _, err := s.DoFor(ctx, keys[i], "script", "load", script.Text); err != nil {
				return err
			}
			loaded[n] = true
		}
		keysAgain, commandsAgain = append(keysAgain, keys[i]), append(commandsAgain, commands[i])
	}
	second, secondErrs, err := s.DoAll(ctx, keysAgain, commandsAgain)
	for at, i := range again {
		replies[i], errs[i] = second[at], secondErrs[at]
	}
	return err
}

// Eval is like [Store.EvalAll], but for one call.
func (s *Store) Eval(ctx context.Context, script *lua.Script, call ScriptCall) (reply any, err error) {
	replies, errs, err := s.EvalAll(ctx, script, []ScriptCall{call})
	if err == nil {
		err = errs[0]
	}
	return replies[0], err
}
