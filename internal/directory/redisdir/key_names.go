// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"context"
	_ "embed"
	"strings"

	"github.com/penstock/penstock/internal/directory"
)

// The names of keys are a sorted set whose members all have the same score. A member is the name, a
// zero byte, and the hash. A name has no control characters.
const (
	nameEnd = "\x00"
	hashEnd = "\xff" // this byte sorts after every digit of a hash
)

// addKeyScript adds a member if the name has the expected number of members.
//
//go:embed add_key.lua
var addKeyScript string

func member(key directory.KeyName) string { return key.Name + nameEnd + key.Hash }

// KeyHashes implements [directory.Source].
func (s *Source) KeyHashes(ctx context.Context, name string) (hashes []string, err error) {
	keys, err := s.keyNames(ctx, "["+name+nameEnd, "("+name+nameEnd+hashEnd)
	for _, k := range keys {
		hashes = append(hashes, k.Hash)
	}
	return hashes, err
}

// KeysAfter implements [directory.Source].
func (s *Source) KeysAfter(ctx context.Context, name string, most int) ([]directory.KeyName, error) {
	from := "-"
	if name != "" {
		from = "(" + name + nameEnd + hashEnd
	}
	return s.keyNames(ctx, from, "+", "limit", 0, most)
}

// Source.keyNames returns the names and hashes of keys in a range of the sorted set of keys. It
// leaves out members that Penstock has not written.
func (s *Source) keyNames(ctx context.Context, bounds ...any) (keys []directory.KeyName, err error) {
	reply, err := s.store.DoFor(ctx, keyNamesKey, append([]any{"zrangebylex", keyNamesKey}, bounds...)...)
	members, _ := reply.([]any)
	for _, one := range members {
		text, _ := one.(string)
		if name, hash, ok := strings.Cut(text, nameEnd); ok {
			keys = append(keys, directory.KeyName{Name: name, Hash: hash})
		}
	}
	return keys, wrapFailure(err)
}

// AddKey implements [directory.Source].
func (s *Source) AddKey(ctx context.Context, key directory.KeyName, others int) (added bool, err error) {
	reply, err := s.store.DoFor(ctx, keyNamesKey, "eval", addKeyScript, 1, keyNamesKey, "["+key.Name+nameEnd,
		"("+key.Name+nameEnd+hashEnd, others, member(key))
	return reply == int64(1), wrapFailure(err)
}

// DropKey implements [directory.Source].
func (s *Source) DropKey(ctx context.Context, key directory.KeyName) error {
	_, err := s.store.DoFor(ctx, keyNamesKey, "zrem", keyNamesKey, member(key))
	return wrapFailure(err)
}
