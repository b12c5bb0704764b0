// SPDX-License-Identifier: Apache-2.0

package redisdir

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// A place in the list is the name of a network or a position of the store. Networks come first.
const (
	placeNetwork = "network:"
	placeScan    = "scan:"
)

// Records implements [directory.Source]. Records needs [BulkPrivilege].
func (s *Source) Records(ctx context.Context, of directory.Range) (directory.Part, error) {
	after, inNetworks := strings.CutPrefix(of.After, placeNetwork)
	position, inKeys := strings.CutPrefix(of.After, placeScan)
	switch withNetworks := of.Kind == "" || of.Kind == directory.KindNetwork; {
	case withNetworks && (inNetworks || of.After == ""):
		return s.networksAfter(ctx, after, of)
	case of.Kind != directory.KindNetwork && (inKeys || of.After == ""):
		return s.scan(ctx, position, of)
	}
	return directory.Part{}, fmt.Errorf("%w: %.100q; write the place at which the previous page ended", directory.ErrPlace, of.After)
}

// networksAfter returns the records of the networks after the given one, in the order of their
// text.
func (s *Source) networksAfter(ctx context.Context, after string, of directory.Range) (p directory.Part, err error) {
	all, err := s.Networks(ctx)
	if err != nil {
		return p, err
	}
	names := slices.Sorted(maps.Keys(all))
	names = names[len(names)-countAfter(names, after):]
	if len(names) > of.Most {
		names = names[:of.Most]
		p.After = placeNetwork + names[of.Most-1]
	} else if of.Kind == "" {
		p.After = placeScan
	}
	for _, name := range names {
		p.Names = append(p.Names, policy.ClientName{Kind: directory.KindNetwork, ID: name})
		p.Texts = append(p.Texts, all[name])
	}
	return p, nil
}

// countAfter returns how many of the sorted names come after the given name.
func countAfter(names []string, name string) int {
	at, found := slices.BinarySearch(names, name)
	if found {
		at++
	}
	return len(names) - at
}

// Source.scan returns a part of the records of clients other than networks.
func (s *Source) scan(ctx context.Context, position string, of directory.Range) (p directory.Part, err error) {
	pattern := recordPrefix + "*"
	if of.Kind != "" {
		pattern = recordPrefix + globLiteral.Replace(of.Kind) + ":*"
	}
	keys, next, err := s.store.Scan(ctx, pattern, position, of.Look)
	for look := of.Look / 2; err == nil && len(keys) > of.Most && look > 0; look /= 2 {
		keys, next, err = s.store.Scan(ctx, pattern, position, look)
	}
	switch {
	case errors.Is(err, redisstore.ErrPosition):
		return p, fmt.Errorf("%w: %w; begin anew", directory.ErrPlace, err)
	case redis.IsPermissionError(err):
		return p, fmt.Errorf("%w: a list needs the right %s, which the user of Redis lacks: %w; ask Redis with --redis and another user",
			directory.ErrSource, BulkPrivilege, err)
	case err != nil:
		return p, wrapFailure(err)
	}
	if next != "" {
		p.After = placeScan + next
	}
	for _, key := range keys {
		kind, id, _ := strings.Cut(strings.TrimPrefix(key, recordPrefix), ":")
		p.Names = append(p.Names, policy.ClientName{Kind: kind, ID: id})
	}
	p.Texts = make([][]byte, len(keys))
	return p, wrapFailure(s.store.Values(ctx, keys, p.Texts))
}

// globLiteral escapes a text, so that a pattern matches it literally.
var globLiteral = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)
