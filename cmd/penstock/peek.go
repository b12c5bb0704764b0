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
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// lookTimeout is how long Redis may take to answer. It is generous because the user is waiting for
// one answer, perhaps far from Redis.
const lookTimeout = 5 * time.Second

// lookedAt is a store that explain only reads. For an empty store in memory, name is "" and redis
// is nil.
type lookedAt struct {
	counter.Store
	name  string
	redis *redisstore.Store
	Close func() error
}

// open returns the store that the flags select, or an empty one whose clock is at now.
func (f *storeFlags) open(now counter.Micros) (*lookedAt, error) {
	if !f.given() {
		if !f.IsZero() {
			return nil, errors.New("the flags --redis-… need --redis, which is missing; write --redis redis://host:6379/0")
		}
		store, err := memstore.New(memstore.Options{Now: func() counter.Micros { return now }})
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
	return &lookedAt{Store: store, name: store.String(), redis: store, Close: store.Close}, nil
}

var variable = regexp.MustCompile(`\{env\.[^{}]*\}`)

// fillIn replaces {env.NAME} in the URL of a store, as Caddy does. A value before the host is
// escaped, since passwords may contain any character.
func fillIn(text string) (filled string, err error) {
	at := strings.LastIndexByte(text, '@')
	for i, part := range []string{text[:max(0, at)], text[max(0, at):]} {
		filled += variable.ReplaceAllStringFunc(part, func(word string) string {
			value, wrong := policyfile.Secret(word)
			err = errors.Join(err, wrong)
			if i == 0 {
				value = url.PathEscape(value)
			}
			return value
		})
	}
	return filled, err
}

// look evaluates the plan's checks, and those of all shards, without charging anything.
func look(ctx context.Context, store counter.Store, plan *core.Plan) error {
	looks := plan.Looks()
	results := make([]counter.Result, len(looks))
	for from := 0; from < len(looks); from += counter.ChecksMax {
		to := min(from+counter.ChecksMax, len(looks))
		if err := store.Take(ctx, looks[from:to], results[from:to]); err != nil {
			return fmt.Errorf("reading the counters: %w%s", err, otherMode(err))
		}
	}
	plan.Looked(results)
	return nil
}

// otherMode returns the remedy for an error of a server that runs in another mode than the given
// one.
func otherMode(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "MOVED "):
		return "; it is a node of a cluster: add --redis-mode cluster"
	case strings.Contains(text, "unknown command"):
		return "; if it is a sentinel, add --redis-mode sentinel --redis-master NAME"
	}
	return ""
}
