// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/lua"
)

// batchMax is how many calls go into one pipeline. Larger ones save nothing more, and a call in one waits for all before
// it: 128 scripts are about a millisecond of Redis.
const batchMax = 128

// A call may spend waitParts of waitOf parts of the timeout in the queue. When more is asked than Redis can answer, the
// oldest call there is always about to leave: sent, it would be charged and its answer heard by nobody.
const waitParts, waitOf = 3, 4

// What has become of a call. Its caller and a lane race for it, so that exactly one of them ends it.
const (
	callWaiting  uint32 = iota // in the queue: no lane has seen it
	callSent                   // a lane has put it into a batch
	callAnswered               // the lane has written failure and signalled done: the call is the caller's
	callLeft                   // the caller is gone: the call is the lane's, which must not send it if it has not yet
)

// call is one Take on its way. Calls are pooled; each has a timer and a channel of its own, so that a caller can leave at
// its deadline whatever the lane does.
type call struct {
	state    atomic.Uint32
	trial    bool      // the breaker is half open and this call is the one that is tried
	asking   bool      // the server has the call's slot only in part yet, and wants to be told that we know
	kept     bool      // it is sent even if its caller leaves
	stale    time.Time // when it has waited for too long to be sent
	deadline time.Time
	next     *call // in the queue: the call that is to be sent with this one
	cmd      *takeCmd
	failure  *Failure // set by the lane before done; nil: cmd holds the answer
	timer    *time.Timer
	done     chan struct{} // holds one
}

func newCall() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &call{timer: timer, done: make(chan struct{}, 1)}
}

// prepare makes the call ready to be sent before the deadline, which is at most the timeout ahead.
func (c *call) prepare(ctx context.Context, deadline time.Time, timeout time.Duration, trial bool) {
	c.state.Store(callWaiting)
	c.trial, c.asking, c.kept = trial, false, false
	c.stale, c.deadline = deadline.Add(-timeout*(waitOf-waitParts)/waitOf), deadline
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(c.deadline) {
		c.deadline = sooner
	}
}

// leave reports whether the caller may go, and whether the call had been sent by then. If he may not, the answer is there.
func (c *call) leave() (left, sent bool) {
	if c.kept {
		return true, true
	}
	if c.state.CompareAndSwap(callWaiting, callLeft) {
		return true, false
	}
	return c.state.CompareAndSwap(callSent, callLeft), true
}

// answer gives the call back to its caller and reports whether the caller was still there.
func (c *call) answer(from uint32, failure *Failure) bool {
	c.failure = failure
	if !c.state.CompareAndSwap(from, callAnswered) {
		return false
	}
	c.done <- struct{}{}
	return true
}

// lane sends a call and whatever else is waiting as one pipeline. It belongs to whoever has taken it from node.idle: a
// caller who finds one there sends his call himself, which saves two goroutine switches (as much as the round trip on a
// machine with few cores); otherwise one of the dispatchers.
type lane struct {
	node     *node
	pipe     redis.Pipeliner
	first    [1]*call      // of batchOne
	calls    []*call       // of the batch
	commands []redis.Cmder // of the batch
	again    []*call       // of the batch, those to send a second time
	epoch    uint64        // of the breaker, when the batch began
	deadline time.Time     // of the batch
}

func newLane(n *node) *lane {
	return &lane{
		node:     n,
		pipe:     n.client.Pipeline(),
		calls:    make([]*call, 0, batchMax),
		commands: make([]redis.Cmder, 0, batchMax+1),
		again:    make([]*call, 0, batchMax),
	}
}

// dispatch gives what is waiting to lanes. It ends when the node closes; callers who are still waiting then notice that
// by themselves.
func (n *node) dispatch() {
	for {
		var first *call
		select {
		case first = <-n.queue:
		case <-n.ctx.Done():
			return
		}
		select {
		case l := <-n.idle:
			now := time.Now()
			l.batchOne(first, now, now.Add(n.store.settings.timeout))
			n.idle <- l
		case <-n.ctx.Done():
			return
		}
	}
}

// batchOne is batch for one call.
func (l *lane) batchOne(first *call, now, deadline time.Time) {
	l.first[0] = first
	l.batch(l.first[:], now, deadline)
	l.first[0] = nil
}

// batch sends the first calls, batchMax of them at most and those that are not nil, and whatever else is waiting, and answers them. Redis has until
// the deadline to answer, the first call's own if its caller is the one who sends. It is never that of calls that have
// waited, or are in a hurry: they leave by themselves, and Redis is not to blame for the little time they left it.
func (l *lane) batch(first []*call, now, deadline time.Time) {
	l.deadline = deadline
	l.epoch = l.node.breaker.epoch.Load()
	l.calls, l.commands, l.again = l.calls[:0], l.commands[:0], l.again[:0]
	for _, c := range first {
		l.admitAll(c, now)
	}
collect:
	for len(l.calls) < batchMax {
		select {
		case c := <-l.node.queue:
			l.admitAll(c, now)
		default:
			break collect
		}
	}
	if len(l.calls) == 0 {
		return
	}
	l.send()
	clear(l.calls)
	clear(l.commands)
	clear(l.again)
}

// admitAll puts a call into the batch, with those that are to be sent with it; nil is none.
func (l *lane) admitAll(c *call, now time.Time) {
	for c != nil {
		next := c.next // once it is admitted, the call may be its caller's
		c.next = nil
		l.admit(c, now)
		c = next
	}
}

// admit puts a call into the batch, unless its caller has left, its time is up or soon will be, or the breaker has opened
// since.
func (l *lane) admit(c *call, now time.Time) {
	switch {
	case c.state.Load() == callLeft:
		l.node.drop(c)
	case !c.trial && l.node.breaker.State() != BreakerClosed:
		l.refuse(c, errBreakerOpen)
	case !now.Before(c.deadline) || now.After(c.stale):
		l.refuse(c, errTimeout)
	case !c.state.CompareAndSwap(callWaiting, callSent):
		l.node.drop(c)
	default:
		if c.trial {
			l.epoch = l.node.breaker.epoch.Load() // it may have begun after the batch; it ends with this call
		}
		l.add(c)
	}
}

// add puts a call at the end of the pipeline.
func (l *lane) add(c *call) {
	l.calls = append(l.calls, c)
	if c.asking {
		l.commands = append(l.commands, redis.NewStatusCmd(l.node.ctx, "asking"))
	}
	l.commands = append(l.commands, c.cmd)
}

// refuse answers a call without sending it.
func (l *lane) refuse(c *call, failure *Failure) {
	if c.trial {
		l.node.breaker.release()
	}
	if !c.answer(callWaiting, failure) {
		l.node.recycle(c)
	}
}

// send runs the batch and answers its calls.
func (l *lane) send() {
	ctx := &batchContext{Context: l.node.ctx, deadline: l.deadline}
	l.node.store.batches.Add(1)
	whole := l.exec(ctx)
	failed := false
	for _, c := range l.calls {
		failure := outcomeOf(c, whole)
		if unknownScript(failure) {
			l.again = append(l.again, c)
			continue
		}
		failed = failed || failure != nil && failure.storeWide()
		l.finish(c, failure)
	}
	if len(l.again) > 0 && l.sendAgain(ctx) {
		failed = true
	}
	if l.node.ctx.Err() != nil {
		return // it failed because the node was closed
	}
	l.node.breaker.report(l.epoch, failed)
}

// unknownScript reports whether Redis answered that it does not know the script.
func unknownScript(f *Failure) bool {
	return f != nil && f.Kind == KindScript && redis.HasErrorPrefix(f.Cause, "NOSCRIPT")
}

// exec sends the commands in one pipeline, once: takeCmd forbids the second time. The result is what became of the
// pipeline as a whole, for the commands that got no reply of their own.
func (l *lane) exec(ctx context.Context) *Failure {
	for _, command := range l.commands {
		command.SetErr(errUnanswered)
	}
	_ = l.pipe.BatchProcess(ctx, l.commands...)
	if _, err := l.pipe.Exec(ctx); err != nil {
		whole := *failureOf(err) // a copy: some failures are everybody's
		whole.whole = true
		return &whole
	}
	return nil
}

// outcomeOf says what became of one call of a pipeline.
func outcomeOf(c *call, whole *Failure) *Failure {
	switch err := c.cmd.Err(); err {
	case nil:
		return nil
	case errUnanswered:
		return whole
	default:
		return failureOf(err)
	}
}

// sendAgain loads the script and sends those calls a second time to which Redis has answered that it did not know it
// (after SCRIPT FLUSH or a restart): that answer alone proves that they were not executed. The load travels ahead of them
// on the same connection. It reports whether that failed.
func (l *lane) sendAgain(ctx *batchContext) (failed bool) {
	now := time.Now()
	l.calls, l.commands = l.calls[:0], l.commands[:0]
	l.commands = append(l.commands, redis.NewStringCmd(ctx, "script", "load", lua.Take))
	for _, c := range l.again {
		if c.state.Load() == callLeft || !now.Before(c.deadline) {
			l.finish(c, errTimeout)
			continue
		}
		l.add(c)
	}
	whole := l.exec(ctx)
	for _, c := range l.calls {
		failure := outcomeOf(c, whole)
		if unknownScript(failure) && whole != nil {
			failure = whole // why the script could not be loaded
		}
		failed = failed || failure != nil && failure.storeWide()
		l.finish(c, failure)
	}
	return failed
}

// finish answers a call that was sent.
func (l *lane) finish(c *call, failure *Failure) {
	if failure != nil && l.node.ctx.Err() != nil {
		failure = l.node.gone()
	}
	if !c.answer(callSent, failure) {
		l.node.recycle(c)
	}
}

// batchContext is the store's context with a batch's deadline: without the timer and the goroutine of the standard one,
// as go-redis puts the deadline on the connection.
type batchContext struct {
	context.Context
	deadline time.Time
}

// Deadline returns when the batch must have been answered.
func (c *batchContext) Deadline() (time.Time, bool) { return c.deadline, true }
