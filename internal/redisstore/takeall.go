// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"

	"github.com/penstock/penstock/core"
)

// takeAll answers calls, in one pipeline or one for each 128 of them. A caller who cannot give up sends the first pipeline
// himself if the server is idle. The failure of a call is its Err, and each is one.
func (n *node) takeAll(ctx context.Context, calls []core.Call) {
	var few [batchMax]*call
	made := few[:0]
	for i := range calls {
		made = append(made, n.begin(ctx, &calls[i]))
	}
	own := 0 // how many the caller sends
	var l *lane
	if ctx.Done() == nil && n.queue.len() == 0 {
		select {
		case l = <-n.idle:
			own = min(len(made), batchMax)
		default:
		}
	}
	for _, c := range made[own:] {
		if c != nil {
			n.enqueue(c, n.store.settings.queueWait)
		}
	}
	if l != nil {
		l.batch(made[:own])
		n.idle <- l
	}
	for i, c := range made {
		if c != nil {
			setFailure(&calls[i], n.end(ctx, c, i < own, &calls[i]))
		}
	}
}

// setFailure sets a call's error; a nil *Failure is none.
func setFailure(call *core.Call, failure *Failure) {
	if call.Err = nil; failure != nil {
		call.Err = failure
	}
}

// end waits for the end of a call, which has come if the caller sent it, and returns what went wrong.
func (n *node) end(ctx context.Context, c *call, sent bool, call *core.Call) *Failure {
	var failure *Failure
	if sent {
		<-c.done
		_, failure = n.outcome(c)
	} else {
		_, failure = n.wait(ctx, c)
	}
	if failure != nil {
		return failure
	}
	return n.read(c, call.Checks, call.Results)
}

// begin makes what is to be sent for a call; nil if nothing is, then the call has its error.
func (n *node) begin(ctx context.Context, call *core.Call) *call {
	call.Err = core.ValidateChecks(call.Checks, call.Results)
	if call.Err != nil || len(call.Checks) == 0 {
		return nil
	}
	c, failure := n.admit(ctx, call.Checks)
	setFailure(call, failure)
	return c
}
