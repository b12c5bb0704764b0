// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
	"github.com/penstock/penstock/internal/redisstore"
)

// lookTimeout is how long Redis may take to answer: a person waits, and may be far from it.
const lookTimeout = 5 * time.Second

// lookedAt is a store that is only looked at. name is "" if it is one of fresh counters.
type lookedAt struct {
	core.Store
	name  string
	Close func() error
}

// open returns the store of the flags, or one of fresh counters at that instant.
func (f *storeFlags) open(now core.Micros) (*lookedAt, error) {
	if !f.given() {
		if !f.IsZero() {
			return nil, errors.New("the flags --redis-… say how to reach Redis, and --redis is missing; write --redis redis://host:6379/0")
		}
		store, err := memstore.New(memstore.Options{Now: func() core.Micros { return now }})
		if err != nil {
			return nil, err
		}
		return &lookedAt{Store: store, Close: store.Close}, nil
	}
	o, err := f.options()
	if err != nil {
		return nil, err
	}
	o.Timeout, o.Lanes = lookTimeout, 1
	store, err := redisstore.New(o)
	if err != nil {
		return nil, err
	}
	return &lookedAt{Store: store, name: store.String(), Close: store.Close}, nil
}

var variable = regexp.MustCompile(`\{env\.[^{}]*\}`)

// fillIn replaces {env.NAME} as Caddy does in the URL of a store: what stands before the host is escaped, since passwords
// hold any character.
func fillIn(text string) (filled string, err error) {
	at := strings.LastIndexByte(text, '@')
	for i, part := range []string{text[:max(0, at)], text[max(0, at):]} {
		filled += variable.ReplaceAllStringFunc(part, func(word string) string {
			value, wrong := policy.Secret(word)
			err = errors.Join(err, wrong)
			if i == 0 {
				value = url.PathEscape(value)
			}
			return value
		})
	}
	return filled, err
}

// look answers the plan's checks, and those of all shards, without charging anything.
func look(ctx context.Context, store core.Store, plan *core.Plan) error {
	looks := plan.Looks()
	results := make([]core.Result, len(looks))
	for from := 0; from < len(looks); from += core.ChecksMax {
		to := min(from+core.ChecksMax, len(looks))
		if err := store.Take(ctx, looks[from:to], results[from:to]); err != nil {
			return fmt.Errorf("looking at the counters: %w%s", err, otherMode(err))
		}
	}
	plan.Looked(results)
	return nil
}

// otherMode says what to do about an answer of a server that stands with others in another way than was said.
func otherMode(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "MOVED "):
		return "; it is a node of a cluster: add --redis-mode cluster"
	case strings.Contains(text, "unknown command"):
		return "; if it is a sentinel, add --redis-mode sentinel --redis-master NAME"
	}
	return ""
}
