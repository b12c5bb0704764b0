// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

const (
	// explainingMax is how many explanations are made at a time. Each compiles policies, which may
	// have 10,000 rules.
	explainingMax = 2
	// explainingQueue is how many requests wait for an explanation or make one. Others are answered
	// 503.
	explainingQueue = 16
)

// explaining bounds the explanations that are under way, so that they leave processors and turns to
// other requests.
type explaining struct {
	queue, turns chan struct{}
}

func newExplaining() *explaining {
	return &explaining{queue: make(chan struct{}, explainingQueue), turns: make(chan struct{}, explainingMax)}
}

// enter waits for a turn. The caller leaves it. The error is the answer to the request.
func (e *explaining) enter(ctx context.Context) (leave func(), err error) {
	select {
	case e.queue <- struct{}{}:
	default:
		return nil, errExplaining
	}
	select {
	case e.turns <- struct{}{}:
		return func() { <-e.turns; <-e.queue }, nil
	case <-ctx.Done():
		<-e.queue
		return nil, errExplaining
	}
}

var errExplaining = huma.ErrorWithHeaders(huma.Error503ServiceUnavailable("too many explanations are under way; try again"), http.Header{"Retry-After": {"1"}})
