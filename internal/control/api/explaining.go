// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"hash/maphash"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/sources"
)

const (
	// explainingMax is how many explanations are made at a time. Each compiles policies, which may
	// have 10,000 rules.
	explainingMax = 2
	// explainingQueue is the maximum number of requests that wait for an explanation or make one.
	// At most half of them are of one caller. Further requests are answered 503.
	explainingQueue = 16
)

// explaining bounds the explanations that are under way, so that they leave processors and turns of
// the gate to other requests.
type explaining struct {
	queue, turns chan struct{}
	seed         maphash.Seed
	callers      *sources.Counts // the places of each caller, by the hash of the name
}

func newExplaining() *explaining {
	return &explaining{queue: make(chan struct{}, explainingQueue), turns: make(chan struct{}, explainingMax),
		seed: maphash.MakeSeed(), callers: sources.New()}
}

// explaining.enter waits until an explanation may be made. The caller must call leave when the
// explanation is done. An error is the answer to the request.
func (e *explaining) enter(ctx context.Context) (leave func(), err error) {
	dequeue, ok := e.enqueue(callerOf(ctx).actor.Name)
	if !ok {
		return nil, errExplaining
	}
	select {
	case e.turns <- struct{}{}:
		return func() { <-e.turns; dequeue() }, nil
	case <-ctx.Done():
		dequeue()
		return nil, errExplaining
	}
}

// countOf returns the count of a caller's places. Several callers can share a count.
func (e *explaining) countOf(name string) sources.Source {
	return e.callers.Of(maphash.String(e.seed, name))
}

// enqueue takes a place in the queue, if there is one for the caller.
func (e *explaining) enqueue(name string) (dequeue func(), ok bool) {
	from := e.countOf(name)
	if from.Enter(explainingQueue) {
		select {
		case e.queue <- struct{}{}:
			return func() { <-e.queue; from.Leave() }, true
		default:
		}
	}
	from.Leave()
	return nil, false
}

var errExplaining = huma.ErrorWithHeaders(huma.Error503ServiceUnavailable("too many explanations are under way; try again"), http.Header{"Retry-After": {"1"}})
