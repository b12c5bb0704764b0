// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"

	"github.com/penstock/penstock/core/counter"
)

// takeAll answers calls, in one pipeline or in several of at most 128 calls. If the server is idle,
// and ctx ends late enough or never, the caller sends the first pipeline itself. A call that fails
// gets a [*Failure] or a validation error as its Err.
func (n *node) takeAll(ctx context.Context, calls []counter.Call) {
	var few [batchMax]*call
	made := few[:0]
	for i := range calls {
		made = append(made, n.begin(ctx, &calls[i]))
	}
	own := 0 // number of calls that the caller sends
	var l *lane
	if n.mayCarry(ctx) {
		select {
		case l = <-n.idle:
			own = n.fitting(made)
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

// node.fitting returns how many of the calls fit into one batch.
func (n *node) fitting(calls []*call) int {
	most, checks := int(n.pace.most.Load()), 0
	for i, c := range calls {
		if i == batchMax || checks >= most {
			return i
		}
		if c != nil {
			checks += c.checks
		}
	}
	return len(calls)
}

// setFailure sets a call's error; a nil *Failure clears it.
func setFailure(call *counter.Call, failure *Failure) {
	if call.Err = nil; failure != nil {
		call.Err = failure
	}
}

// node.end waits for the end of a call and returns its failure. If the caller sent the call itself,
// the call has already ended.
func (n *node) end(ctx context.Context, c *call, sent bool, call *counter.Call) *Failure {
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

// node.begin creates the command for a call. It returns nil if there is nothing to send; call.Err
// then holds the error, if any.
func (n *node) begin(ctx context.Context, call *counter.Call) *call {
	call.Err = counter.ValidateChecks(call.Checks, call.Results)
	if call.Err != nil || len(call.Checks) == 0 {
		return nil
	}
	c, failure := n.admit(ctx, call.Checks)
	setFailure(call, failure)
	return c
}
