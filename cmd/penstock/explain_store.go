// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// lookedAt is a store that explain only reads. For an empty store in memory, name is "" and redis
// is nil.
type lookedAt struct {
	counter.Store
	name  string
	redis *redisstore.Store
	Close func() error
}

// storeFlags.open returns the store that the flags select, or an empty one whose clock always shows
// the instant now.
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

// otherMode returns the remedy for an error of a server that runs in a mode other than the given
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
