// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

const (
	// explainingMax is how many explanations are made at a time. Each compiles policies, which may
	// have 10,000 rules.
	explainingMax = 2
	// explainingQueue is how many requests wait for an explanation or make one. Others are answered
	// 503.
	explainingQueue = 16
	// explainingEach is how many of them one caller may have, so that others find a place.
	explainingEach = explainingQueue / 2
)

// explaining bounds the explanations that are under way, so that they leave processors and turns to
// other requests.
type explaining struct {
	turns chan struct{}

	mu     sync.Mutex
	queued int
	each   map[string]int // by the name of a caller, of those that have any
}

func newExplaining() *explaining {
	return &explaining{turns: make(chan struct{}, explainingMax), each: map[string]int{}}
}

// enter waits for a turn. The caller leaves it. The error is the answer to the request.
func (e *explaining) enter(ctx context.Context) (leave func(), err error) {
	name := callerOf(ctx).actor.Name
	if !e.enqueue(name) {
		return nil, errExplaining
	}
	select {
	case e.turns <- struct{}{}:
		return func() { <-e.turns; e.dequeue(name) }, nil
	case <-ctx.Done():
		e.dequeue(name)
		return nil, errExplaining
	}
}

// enqueue takes a place in the queue, if there is one for the caller.
func (e *explaining) enqueue(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.queued == explainingQueue || e.each[name] == explainingEach {
		return false
	}
	e.queued++
	e.each[name]++
	return true
}

func (e *explaining) dequeue(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queued--
	if e.each[name]--; e.each[name] == 0 {
		delete(e.each, name)
	}
}

var errExplaining = huma.ErrorWithHeaders(huma.Error503ServiceUnavailable("too many explanations are under way; try again"), http.Header{"Retry-After": {"1"}})
